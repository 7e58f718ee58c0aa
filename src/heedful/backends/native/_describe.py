"""A call as the kernel reads it."""

import torch
from torch import Tensor

from ..._call import Call
from ._library import NativeCall, array, in_memory
from ._visible import Visible

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
    keep = [in_memory(x) for x in (call.query, call.key, call.value)]
    native.query, native.key, native.value = map(array, keep)
    if visible.mask is not None:
        native.mask = array(visible.mask)
    if visible.bias is not None:
        native.bias = array(visible.bias)
    positions = None
    if distances or visible.slopes is not None:
        positions = call.rows.positions
        positions = (positions.flatten(1) if positions.dim() == 4 else positions[None, :, 0]).contiguous()
        native.position_stride = 0 if len(positions) == 1 else L
    sinks = None if call.sinks is None else in_memory(call.sinks).float().contiguous()
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
