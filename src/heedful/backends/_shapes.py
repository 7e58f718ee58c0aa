"""The shape of every answer, known before anything is computed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import reductions as r
from .._call import Call
from ..reductions import Reduction

Sizes = tuple[int, ...]


def shapes(call: Call, asked: tuple[Reduction, ...], need_output: bool) -> list[Tensor]:
    """Empty tensors like the output, if it is needed, and every answer."""
    B, H, L, _ = call.query.shape
    found = [call.query.new_empty(B, H, L, call.value.shape[3])] if need_output else []
    for each in asked:
        shape = SHAPES[type(each)](each, call)
        found.append(call.query.new_empty(shape, dtype=call.dtype))
        if isinstance(each, r.TopK):
            found.append(call.query.new_empty(shape, dtype=torch.int64))
    return found


def _per_head(call: Call, *sizes: int) -> Sizes:
    return (*call.query.shape[:2], *sizes)


def _per_row(call: Call, *sizes: int) -> Sizes:
    return (*call.query.shape[:3], *sizes)


def _received(each: r.Received, call: Call) -> Sizes:
    heads = call.query.shape[1] if each.per == "head" else call.key.shape[1]
    return call.query.shape[0], heads, call.key.shape[2]


def _farthest(call: Call) -> int:
    """The farthest distance of the call, plus 1; known only when it runs where starts or rows are tensors."""
    rows = call.rows
    if isinstance(rows.start, Tensor) or isinstance(rows.index, Tensor):
        return torch.library.get_ctx().new_dynamic_size(min=1)
    low, high = rows.index.start + rows.start, rows.index.stop - 1 + rows.start
    last = call.key.shape[2] - 1
    ends = (low, high, last - low, last - high)
    size: Any = 0
    for end in ends:
        size = torch.sym_max(size, torch.sym_max(end, -end))
    return size + 1


def _groups(each: r.ByKey, call: Call) -> int:
    return torch.library.get_ctx().new_dynamic_size()


SHAPES: dict[type[Reduction], Callable[..., Sizes]] = {
    r.Entropy: lambda each, call: _per_row(call),
    r.LogSumExp: lambda each, call: _per_row(call),
    r.Mass: lambda each, call: _per_row(call),
    r.MeanDistance: lambda each, call: _per_row(call),
    r.SinkShare: lambda each, call: _per_row(call),
    r.MaxLogit: lambda each, call: _per_row(call) if each.per == "query" else _per_head(call),
    r.TopK: lambda each, call: _per_row(call, each.k),
    r.Full: lambda each, call: _per_row(call, call.key.shape[2]),
    r.KeyColumns: lambda each, call: _per_row(call, len(each.keys)),
    r.ByKey: lambda each, call: _per_row(call, _groups(each, call)),
    r.QueryRows: lambda each, call: _per_head(call, len(each.queries), call.key.shape[2]),
    r.Pooled: lambda each, call: _per_head(call, each.rows, each.cols),
    r.DistanceProfile: lambda each, call: _per_head(call, _farthest(call)),
    r.TransposedProduct: lambda each, call: _per_head(call, call.key.shape[2], each.y.shape[3]),
    r.Received: _received,
}
