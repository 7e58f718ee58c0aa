"""Dropout by a hash of (seed, batch, head, query, key): the same pairs fall whatever the panel size or the backend."""

import torch
from torch import Tensor

from .._call import Call
from .._rows import Index, Rows

MASK32 = 0xFFFFFFFF


def _mix(x: Tensor) -> Tensor:
    """The 32-bit finalizer of MurmurHash3, on int64 tensors that hold 32-bit numbers."""
    x = x ^ (x >> 16)
    x = (x * 0x85EBCA6B) & MASK32
    x = x ^ (x >> 13)
    x = (x * 0xC2B2AE35) & MASK32
    return x ^ (x >> 16)


def _numbers(index: Index, rows: Rows) -> Tensor:
    if isinstance(index, slice):
        return torch.arange(index.start, index.stop, device=rows.device)
    return index.to(rows.device)


def keep_scale(call: Call, rows: Rows, keys: Tensor) -> Tensor | float:
    """What weights are multiplied with: 0 where dropped, 1 / (1 - p) where kept; (B, H, rows, keys)."""
    if call.dropout_p == 0:
        return 1.0
    if call.dropout_p == 1:
        return 0.0
    state = _mix(_numbers(rows.batch, rows) + call.seed & MASK32)[:, None, None, None]
    state = _mix(state ^ _numbers(rows.heads, rows)[:, None, None])
    state = _mix(state ^ _numbers(rows.index, rows)[:, None])
    kept = _mix(state ^ keys) >= round(call.dropout_p * 2**32)
    return kept.to(call.dtype) / (1 - call.dropout_p)
