"""One run of the kernel: a call in, named answers out."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._call import Call
from . import _library
from ._describe import describe
from ._library import NativeGradient, array
from ._visible import Restrictions, Visible

PER_ROW = ("logsumexp", "max_logit", "entropy", "mass", "mean_distance")
PER_KEY = ("received_sum", "received_max", "received_count")
Answers = dict[str, Tensor]


@dataclass(frozen=True)
class Wanted:
    """What is asked of the kernel.

    Attributes:
        names: Of PER_ROW, PER_KEY, "weights" (B, H, L, S) and "row_state" (B, H, L, 2).
        topk: How many of the largest weights; 0: none.
        output: Whether the values are summed.
    """

    names: Collection[str] = ()
    topk: int = 0
    output: bool = True


def forward(call: Call, wanted: Wanted) -> Answers:
    """The named answers, "topk_weight" and "topk_key" (B, H, L, k), and "output" (B, H, L, Ev)."""
    restrictions = Restrictions(call)
    steps = restrictions.steps()
    if len(steps) == 1:
        return _forward(call, restrictions.of(steps[0]), wanted)
    B, H, _ = call.rows.shape
    parts = [
        _forward(call.select(slice(0, B), slice(0, H), index), restrictions.of(index), wanted)
        for index in steps
    ]
    return {name: _merged(name, [part[name] for part in parts]) for name in parts[0]}


def _merged(name: str, parts: list[Tensor]) -> Tensor:
    if name not in PER_KEY:
        return torch.cat(parts, 2)
    stacked = torch.stack(parts)
    return stacked.amax(0) if name == "received_max" else stacked.sum(0)


def _forward(call: Call, visible: Visible, wanted: Wanted) -> Answers:
    native, keep = describe(call, visible)
    answers = _room(call, wanted)
    for name, tensor in answers.items():
        setattr(native, name, array(tensor) if name == "output" else tensor.data_ptr())
    native.topk = wanted.topk
    _library.forward(native)
    del keep
    return answers


def _room(call: Call, wanted: Wanted) -> Answers:
    """Memory for the answers."""
    (B, H, L, _), (S, Ev) = call.query.shape, call.value.shape[2:]
    shapes = dict.fromkeys(PER_ROW, (B, H, L)) | dict.fromkeys(PER_KEY, (B, H, S))
    shapes |= {"weights": (B, H, L, S), "row_state": (B, H, L, 2)}
    answers = {name: torch.empty(shapes[name]) for name in wanted.names}
    if wanted.topk:
        answers["topk_weight"] = torch.empty(B, H, L, wanted.topk)
        answers["topk_key"] = torch.empty(B, H, L, wanted.topk, dtype=torch.int64)
    if wanted.output:
        answers["output"] = torch.empty(B, H, L, Ev, dtype=call.query.dtype)
    return answers


def backward(call: Call, row_state: Tensor, grads: Answers, wanted: Collection[str]) -> Answers:
    """The gradients of "query", "key" and "value" that are wanted, and "row", what the logits of a row have in common.

    Args:
        call: As it was given to `forward`.
        row_state: What `forward` answered.
        grads: Gradients of "output", "logsumexp", "entropy" and "received_sum".
        wanted: Names of the gradients to find.
    """
    restrictions = Restrictions(call)
    steps = restrictions.steps()
    B, H, _ = call.rows.shape
    parts = []
    for index in steps:
        part = call if len(steps) == 1 else call.select(slice(0, B), slice(0, H), index)
        of_part = {name: grad if name in PER_KEY else grad[:, :, index] for name, grad in grads.items()}
        parts.append(_backward(part, restrictions.of(index), row_state[:, :, index], of_part, wanted))
    if len(parts) == 1:
        return parts[0]
    return {
        name: torch.stack([part[name].float() for part in parts]).sum(0).to(call.key.dtype)
        if name in ("key", "value")
        else torch.cat([part[name] for part in parts], 2)
        for name in parts[0]
    }


def _backward(
    call: Call, visible: Visible, row_state: Tensor, grads: Answers, wanted: Collection[str]
) -> Answers:
    native, keep = describe(call, visible)
    gradient = NativeGradient()
    given = {name: grad.contiguous() for name, grad in grads.items() if name != "output"}
    given["row_state"] = row_state.contiguous()
    for name, tensor in given.items():
        setattr(gradient, name, tensor.data_ptr())
    if "output" in grads:
        gradient.output = array(grads["output"])
    found = {name: torch.empty_like(getattr(call, name)) for name in wanted if name != "row"}
    for name, tensor in found.items():
        setattr(gradient, name, array(tensor))
    if "row" in wanted:
        found["row"] = torch.empty(call.query.shape[:3])
        gradient.row = found["row"].data_ptr()
    _library.backward(native, gradient)
    del keep, given
    return found
