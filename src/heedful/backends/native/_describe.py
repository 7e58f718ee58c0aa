"""A call as the kernel reads it."""

import torch
from torch import Tensor

from ..._call import Call
from ._library import NativeCall, array, in_memory
from ._visible import EVERYTHING, Visible

TINY = torch.finfo(torch.float32).tiny  # 0 would be no cap


def describe(call: Call, visible: Visible, distances: bool = False) -> tuple[NativeCall, list[Tensor]]:
    """The call as the kernel reads it, and the tensors that must live as long.

    Args:
        call: What is described.
        visible: What its queries see.
        distances: Whether an answer needs to know how far keys are.
    """
    B, H, L, E = call.query.shape
    native = NativeCall(batch=B, heads=H, kv_heads=call.key.shape[1], queries=L, width=E)
    native.keys, native.value_width = call.value.shape[2:]
    native.scale, native.softcap = call.scale, max(call.softcap, TINY) if call.softcap else 0
    keep = [in_memory(call.query), in_memory(call.key), in_memory(call.value)]
    native.query, native.key, native.value = map(array, keep)
    if call.sinks is not None:
        keep.append(in_memory(call.sinks).float().contiguous())
        native.sinks = keep[-1].data_ptr()
    if distances or visible.slopes is not None:
        keep.append(call.rows.positions_of_items.contiguous())
        native.positions, native.position_stride = keep[-1].data_ptr(), 0 if len(keep[-1]) == 1 else L
    if visible is not EVERYTHING:
        keep += _restrict(native, visible)
    return native, keep


def _restrict(native: NativeCall, visible: Visible) -> list[Tensor]:
    """Tell what queries see, and return the tensors that say so."""
    if visible.mask is not None:
        native.mask = array(visible.mask)
    if visible.bias is not None:
        native.bias = array(visible.bias)
    if visible.slopes is not None:
        native.slopes = visible.slopes.data_ptr()
    if visible.first is not None and visible.last is not None:
        native.first, native.last = visible.first.data_ptr(), visible.last.data_ptr()
        native.range_stride = 0 if len(visible.first) == 1 else native.queries
    return [x for x in vars(visible).values() if x is not None]
