"""Examines a module that adds a positional encoding to its input."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from heedful.checking import encodings
from heedful.checking.calling import CallFailed, call_quietly, tensors_in
from heedful.checking.claims import first, texts
from heedful.checking.construction import build
from heedful.checking.fit import gap
from heedful.checking.options import Options
from heedful.checking.problems import CannotCheck
from heedful.checking.record import Record, compared

BATCH, LENGTH = 3, 7


def examine_module(record: Record, target: Any, options: Options) -> None:
    """A class is built first; an instance is used as it is, in eval mode."""
    module = build(target, options, encodings.LONG) if inspect.isclass(target) else target
    if any(isinstance(m, nn.Embedding) for m in module.modules()) or list(module.parameters()):
        raise CannotCheck("it has learned parameters, so there is no right table to compare it with.")
    module.eval()
    width = width_of(module)
    shown = as_positions(module, width)
    if shown is not None:
        encodings.judge(record, lambda length, _: shown(length), [(LENGTH, width), (9, width)], target, None)
        return
    added = run(module, torch.zeros(BATCH, LENGTH, width))
    if not added.any():
        record.find("positions-not-added", "a batch of zeros comes back as zeros", {}, smallest="one token")
        return
    axis = varying_axis(added)
    about = first(
        {
            "batch": r"[(\[]\s*(?:b|n|batch(?:_size)?)\s*,",
            "length": r"[(\[]\s*(?:l|t|s|seq(?:_len|uence)?\w*)\s*,",
        },
        texts(target),
    )
    if axis is None:
        record.find("positions-wrong-axis", "a batch of zeros comes back with equal rows",
                    {"axis": "no axis", "effect": "every token gets the same row"})  # fmt: skip
        return
    if axis == 0 and about is not None and about.what == "batch":
        effect = f"every token of a sample gets the same row, though {about.where} says (batch, length, ...)"
        words = {"axis": "the batch", "effect": effect}
        record.find(
            "positions-wrong-axis", f"the encoding of {BATCH} samples differs, that of tokens doesn't", words
        )
    else:
        record.convention(
            "layout (batch, length, features)" if axis == 1 else "layout (length, batch, features)"
        )

    def make(length: int, _: int) -> Tensor:
        sizes = (BATCH, length) if axis == 1 else (length, BATCH)
        out = run(module, torch.zeros(*sizes, width))
        return out[0] if axis == 1 else out[:, 0]

    factor = count(record, make(LENGTH, width))
    sizes = [(LENGTH, width), (9, width)]
    odd = (lambda: odd_table(target, options, axis)) if inspect.isclass(target) else None
    fit = encodings.judge(record, lambda n, w: make(n, w) / factor, sizes, target, odd)
    if fit is not None:
        scaled(record, module, width)


def odd_table(target: type, options: Options, axis: int) -> Tensor:
    """Five positions and seven columns, from a module built for that."""
    try:
        module = build(target, options, encodings.LONG, sizes=((1, 1, 7),)).eval()
    except CannotCheck as problem:
        raise CallFailed(str(problem).splitlines()[1]) from problem
    out = run(module, torch.zeros(*((BATCH, 5) if axis == 1 else (5, BATCH)), 7))
    return out[0] if axis == 1 else out[:, 0]


def width_of(module: nn.Module) -> int:
    """The number of features: from a buffer, or what the class was built with."""
    sizes = [b.shape[-1] for b in module.buffers() if b.ndim >= 2]
    named = [getattr(module, n) for n in ("d_model", "dim", "embed_dim", "embedding_dim", "hidden_size")
             if isinstance(getattr(module, n, None), int)]  # fmt: skip
    found = [*sizes, *named]
    return found[0] if found else 24


def run(module: nn.Module, x: Tensor) -> Tensor:
    """The output for this input."""
    found = tensors_in(call_quietly(module, (x,), {}))
    for tensor in found:
        if tensor.shape == x.shape:
            return tensor.detach().double()
    shapes = ", ".join(str(tuple(t.shape)) for t in found)
    raise CannotCheck(
        f"it returned {shapes or 'no tensor'} for an input of {tuple(x.shape)}; I expected the same shape."
    )


def as_positions(module: nn.Module, width: int) -> Any:
    """For a module that hands back the table instead of adding it: how to get one. None otherwise."""
    for argument in (lambda n: torch.zeros(BATCH, n, width), lambda n: n):

        def shown(length: int, argument: Any = argument) -> Tensor:
            return encodings.as_table(call_quietly(module, (argument(length),), {}), length, width)

        try:
            shown(LENGTH)
        except CallFailed:
            continue
        return shown
    return None


def varying_axis(out: Tensor) -> int | None:
    """The axis along which a batch of zeros comes back different: 0, 1 or None."""
    along = [(out - out.narrow(axis, 0, 1)).abs().max().item() > 1e-6 for axis in (0, 1)]
    return 1 if along[1] else (0 if along[0] else None)


def count(record: Record, seen: Tensor) -> float:
    """How many times the table was added: told by the largest wave."""
    norm = (seen.square().sum(-1) / (seen.shape[-1] / 2)).sqrt()
    times = norm.mean().item()
    if abs(times - 2) < 0.02 and norm.std() < 0.02:
        record.find("positions-added-twice", compared(gap(seen, seen / 2), 0.0), {})
        return 2.0
    return 1.0


def scaled(record: Record, module: nn.Module, width: int) -> None:
    """What happens to the input itself: it should come through, perhaps times sqrt(width)."""
    x = torch.randn(BATCH, BATCH, width, generator=torch.Generator().manual_seed(3))
    passed = run(module, x) - run(module, torch.zeros_like(x))
    ratio = (passed * x).sum().item() / (x * x).sum().item()
    if (passed - ratio * x).abs().max() > 1e-3:
        record.properties.append("the input doesn't come through unchanged")
    elif abs(ratio - width**0.5) < 1e-3:
        record.convention("embeddings are multiplied by sqrt(features)")
    elif abs(ratio - 1) > 1e-3:
        record.properties.append(f"the input comes through multiplied by {ratio:.3g}")
