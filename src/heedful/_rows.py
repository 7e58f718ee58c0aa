"""Where a panel lies: which query rows, of which heads, of which batch items."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ._checks import answer_dtype

Index = slice | Tensor


def _within(outer: Index, inner: Index) -> tuple[int, int] | Tensor:
    """The selection `outer[inner]`: both select along one dimension, slices have step 1."""
    if isinstance(outer, slice) and isinstance(inner, slice):
        return outer.start + inner.start, outer.start + inner.stop
    if isinstance(outer, slice):
        return inner + outer.start
    return outer[inner]


def size_of(index: Index) -> int:
    return index.stop - index.start if isinstance(index, slice) else len(index)


@dataclass(eq=False)
class Rows:
    """Query rows of a call, and where they stand among the keys.

    Attributes:
        batch: Chosen batch items, a slice, given as such or as (start, stop), or a 1-D index tensor.
        heads: Chosen query heads, likewise.
        index: Chosen queries, likewise.
        start: Position of query 0 among the keys: one number, or one per batch item of the whole call.
        num_items: Number of batch items B of the whole call.
        num_heads: Number of query heads H of the whole call.
        num_queries: Number of queries L of the whole call.
        num_keys: Number of keys S.
        device: Where the tensors of the call live.
        dtype: What the call is computed in.
    """

    batch: Index
    heads: Index
    index: Index
    start: int | Tensor
    num_items: int
    num_heads: int
    num_queries: int
    num_keys: int
    device: torch.device
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        """Pairs (start, stop) become slices: a slice given to a constructor holds constants for Dynamo."""
        if isinstance(self.batch, tuple):
            self.batch = slice(*self.batch)
        if isinstance(self.heads, tuple):
            self.heads = slice(*self.heads)
        if isinstance(self.index, tuple):
            self.index = slice(*self.index)

    def part(self, batch: Index, heads: Index, index: Index) -> "Rows":
        """A selection within this selection."""
        return replace(
            self,
            batch=_within(self.batch, batch),
            heads=_within(self.heads, heads),
            index=_within(self.index, index),
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Chosen batch items, heads and rows."""
        return size_of(self.batch), size_of(self.heads), size_of(self.index)

    @property
    def is_view(self) -> bool:
        """Whether `of` gives a view: nothing is chosen by an index tensor."""
        return not any(isinstance(choice, Tensor) for choice in (self.batch, self.heads, self.index))

    @cached_property
    def positions(self) -> Tensor:
        """Positions of the rows among the keys, int64: (rows, 1), or (batch, 1, rows, 1) where they differ."""
        index = self.index
        if isinstance(index, slice):
            index = torch.arange(index.start, index.stop, device=self.device)
        if isinstance(self.start, int):
            return (index + self.start)[:, None]
        return self.start[self.batch].to(self.device)[:, None, None, None] + index[:, None]

    @property
    def positions_of_items(self) -> Tensor:
        """The same, (1 or batch, rows)."""
        positions = self.positions
        return positions.flatten(1) if positions.dim() == 4 else positions[None, :, 0]

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """Lowest and highest position of the rows."""
        if 0 in self.shape:
            return 0, -1
        if isinstance(self.index, slice):
            low, high = self.index.start, self.index.stop - 1
        else:
            low, high = int(self.index.min()), int(self.index.max())
        if isinstance(self.start, int):
            return low + self.start, high + self.start
        start = self.start[self.batch]
        return low + int(start.min()), high + int(start.max())

    def key_positions(self, keys: range) -> Tensor:
        return torch.arange(keys.start, keys.stop, device=self.device)

    def of(self, tensor: Tensor, keys: range | None = None) -> Tensor:
        """The part of a tensor (B or 1, H or 1, L or 1, S or 1) that belongs to these rows and keys."""
        choices = [
            self.batch,
            self.heads,
            self.index,
            slice(keys.start, keys.stop) if keys is not None else None,
        ]
        for dim, choice in enumerate(choices):
            if choice is not None and tensor.shape[dim] > 1:
                tensor = tensor[(slice(None),) * dim + (choice,)]
        return tensor


def all_rows(B: int, H: int, L: int, S: int, start: int | Tensor, query: Tensor) -> Rows:
    """All the rows of a call with these sizes."""
    # Pairs, which become slices: a slice made here would hold constants for Dynamo.
    batch: Any = (0, B)
    heads: Any = (0, H)
    index: Any = (0, L)
    return Rows(batch, heads, index, start, B, H, L, S, query.device, answer_dtype(query))
