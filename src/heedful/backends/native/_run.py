"""One run of the kernel: a call in, named answers out."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._call import Call
from . import _library
from ._library import NativeCall, array
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
    shapes = {name: (B, H, L) for name in PER_ROW} | {name: (B, H, S) for name in PER_KEY}
    shapes |= {"weights": (B, H, L, S), "row_state": (B, H, L, 2)}
    answers = {name: torch.empty(shapes[name]) for name in wanted.names}
    if wanted.topk:
        answers["topk_weight"] = torch.empty(B, H, L, wanted.topk)
        answers["topk_key"] = torch.empty(B, H, L, wanted.topk, dtype=torch.int64)
    if wanted.output:
        answers["output"] = torch.empty(B, H, L, Ev, dtype=call.query.dtype)
    return answers


def describe(call: Call, visible: Visible) -> tuple[NativeCall, list[Tensor]]:
    """The call as the kernel reads it, and the tensors that must live as long."""
    B, H, L, E = call.query.shape
    native = NativeCall(batch=B, heads=H, kv_heads=call.key.shape[1], queries=L, width=E)
    native.keys, native.value_width = call.value.shape[2:]
    native.scale, native.softcap = call.scale, call.softcap or 0
    keep = [call.query.detach(), call.key.detach(), call.value.detach()]
    native.query, native.key, native.value = map(array, keep)
    if visible.mask is not None:
        native.mask = array(visible.mask)
    if visible.bias is not None:
        native.bias = array(visible.bias)
    positions = call.rows.positions
    positions = (positions.flatten(1) if positions.dim() == 4 else positions[None, :, 0]).contiguous()
    native.position_stride = 0 if len(positions) == 1 else L
    sinks = None if call.sinks is None else call.sinks.detach().float().contiguous()
    pointers = {
        "slopes": visible.slopes,
        "positions": positions,
        "sinks": sinks,
        "first": visible.first,
        "last": visible.last,
    }
    for name, tensor in pointers.items():
        if tensor is not None:
            setattr(native, name, tensor.data_ptr())
            keep.append(tensor)
    if visible.first is not None:
        native.range_stride = 0 if len(visible.first) == 1 else L
    keep += [tensor for tensor in (visible.mask, visible.bias) if tensor is not None]
    return native, keep
