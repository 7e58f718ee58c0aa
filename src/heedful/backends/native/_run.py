"""One run of the kernel: a call in, named answers out."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..._call import Call
from ..._rows import Rows
from ...reductions import distances
from . import _library
from ._describe import describe
from ._library import NativeGradient, array
from ._visible import EVERYTHING, Restrictions, Visible

PER_ROW = ("logsumexp", "max_logit", "entropy", "mass", "mean_distance")
PER_KEY = ("received_sum", "received_max", "received_count")
FAR = frozenset(("mean_distance", "profile"))  # need to know how far keys are
PER_HEAD = ("profile", "map_sum", "map_max")
Answers = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Map:
    """A small map of every head.

    Attributes:
        rows: Blocks of queries.
        columns: Blocks of keys.
        row: The block of each query, (L,) int32.
        column: The block of each key, (S,) int32, in order.
        scale: (B, H, S) float32, a factor for the weights on each key; None: 1.
    """

    rows: int
    columns: int
    row: Tensor
    column: Tensor
    scale: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Wanted:
    """What is asked of the kernel.

    Attributes:
        names: Of PER_ROW, PER_KEY, PER_HEAD, "weights" (B, H, L, S) and "row_state" (B, H, L, 2).
        topk: How many of the largest weights; 0: none.
        output: Whether the values are summed.
        carried: (1 or B, S, C) float32, contiguous: "carried_sum" (B, H, L, C) is weights @ carried.
        map: What "map_sum" and "map_max" (B, H, rows, columns) are maps of.
    """

    names: Collection[str] = ()
    topk: int = 0
    output: bool = True
    carried: Tensor | None = None
    map: Map | None = None


def empty(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Memory for the kernel to write, whatever torch's default dtype and device are."""
    return torch.empty(size, dtype=dtype, device="cpu")


def forward(call: Call, wanted: Wanted) -> Answers:
    """The named answers, "topk_weight" and "topk_key" (B, H, L, k), and "output" (B, H, L, Ev)."""
    if call.mask is None and not call.bias:
        return _forward(call, EVERYTHING, wanted)
    restrictions = Restrictions(call)
    steps = restrictions.steps()
    if len(steps) == 1:
        return _forward(call, restrictions.of(steps[0]), wanted)
    B, H, _ = call.rows.shape
    parts = []
    for index in steps:
        part = call.select(slice(0, B), slice(0, H), index)
        smaller = None if wanted.map is None else replace(wanted.map, row=wanted.map.row[index])
        parts.append(_forward(part, restrictions.of(index), replace(wanted, map=smaller), call))
    return {name: _merged(name, [part[name] for part in parts]) for name in parts[0]}


def _merged(name: str, parts: list[Tensor]) -> Tensor:
    if name not in PER_KEY and name not in PER_HEAD:
        return torch.cat(parts, 2)
    stacked = torch.stack(parts)
    return stacked.amax(0) if name.endswith("_max") else stacked.sum(0)


def _forward(call: Call, visible: Visible, wanted: Wanted, whole: Call | None = None) -> Answers:
    """The answers about a call, which may be a part of a whole one."""
    native, keep = describe(call, visible, distances=not FAR.isdisjoint(wanted.names))
    answers = _room(call, wanted, whole or call)
    for name, tensor in answers.items():
        setattr(native, name, array(tensor) if name == "output" else tensor.data_ptr())
    native.topk = wanted.topk
    if "profile" in answers:
        native.profile_size = answers["profile"].shape[-1]
    if wanted.map is not None:
        native.map_rows, native.map_columns = wanted.map.rows, wanted.map.columns
        native.map_row, native.map_column = wanted.map.row.data_ptr(), wanted.map.column.data_ptr()
        native.map_scale = None if wanted.map.scale is None else wanted.map.scale.data_ptr()
    if wanted.carried is not None:
        batch, S, native.carried_width = wanted.carried.shape
        native.carried = wanted.carried.data_ptr()
        native.carried_stride = 0 if batch == 1 else S * native.carried_width
    _library.forward(native)
    del keep
    return answers


def _room(call: Call, wanted: Wanted, whole: Call) -> Answers:
    """Memory for the answers."""
    B, H, L, _ = call.query.shape
    _, _, S, Ev = call.value.shape
    answers = {}
    for name in wanted.names:
        if name in PER_ROW:
            answers[name] = empty(B, H, L)
        elif name in PER_KEY:
            answers[name] = empty(B, H, S)
        elif name == "profile":
            answers[name] = empty(B, H, distances(whole.rows))
        elif wanted.map is not None and name in PER_HEAD:
            answers[name] = empty(B, H, wanted.map.rows, wanted.map.columns)
        else:
            answers[name] = empty(B, H, L, 2 if name == "row_state" else S)
    if wanted.topk:
        answers["topk_weight"] = empty(B, H, L, wanted.topk)
        answers["topk_key"] = empty(B, H, L, wanted.topk, dtype=torch.int64)
    if wanted.carried is not None:
        answers["carried_sum"] = empty(B, H, L, wanted.carried.shape[-1])
    if wanted.output:
        answers["output"] = empty(B, H, L, Ev, dtype=call.query.dtype)
    return answers


def backward(
    call: Call,
    row_state: Tensor,
    grads: Answers,
    wanted: Collection[str],
    add_logits: Callable[[Rows, Tensor], None] | None = None,
) -> Answers:
    """The gradients of "query", "key" and "value" that are wanted, and "row", what the logits of a row have in common.

    Args:
        call: As it was given to `forward`.
        row_state: What `forward` answered.
        grads: Gradients of "output", "logsumexp", "entropy", "received_sum" and "topk_weight", with the "topk_key"
            that goes with the last.
        wanted: Names of the gradients to find.
        add_logits: Called with some rows and the gradient of their logits, (B, H, rows, S), until all rows were there.
    """
    restrictions = Restrictions(call)
    steps = restrictions.steps(dense=add_logits is not None)
    B, H, _ = call.rows.shape
    names = {*wanted, *(() if add_logits is None else ("logits",))}
    parts = []
    for index in steps:
        part = call if len(steps) == 1 else call.select(slice(0, B), slice(0, H), index)
        of_part = {name: grad if name in PER_KEY else grad[:, :, index] for name, grad in grads.items()}
        parts.append(_backward(part, restrictions.of(index), row_state[:, :, index], of_part, names))
        if add_logits is not None:
            add_logits(part.rows, parts[-1].pop("logits"))
    if len(parts) == 1:
        return parts[0]
    return {
        name: torch.stack([part[name].float() for part in parts]).sum(0).to(parts[0][name].dtype)
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
    if "topk_key" in grads:
        gradient.topk = grads["topk_key"].shape[-1]
    if "output" in grads:
        gradient.output = array(grads["output"])
    plain = {"row": call.query.shape[:3], "logits": (*call.query.shape[:3], call.key.shape[2])}
    like = torch.empty_like if call.query.shape[1] else torch.zeros_like  # without heads nothing is written
    found = {name: like(getattr(call, name)) for name in wanted if name not in plain}
    for name, tensor in found.items():
        setattr(gradient, name, array(tensor))
    for name in plain.keys() & wanted:
        found[name] = empty(*plain[name])
        setattr(gradient, name, found[name].data_ptr())
    _library.backward(native, gradient)
    del keep, given
    return found
