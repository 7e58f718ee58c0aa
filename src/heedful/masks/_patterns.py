"""The patterns: windows, prefixes, padding, documents."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .._checks import readable
from .._rows import Rows
from ._algebra import Mask, merge


@dataclass(frozen=True)
class Window(Mask):
    """Keys from `left - 1` before the query to `right` after it; None is unbounded."""

    left: int | None
    right: int | None = 0

    def _reach(self, position: int, num_keys: int) -> tuple[int, int]:
        first = 0 if self.left is None else position - self.left + 1
        last = num_keys - 1 if self.right is None else position + self.right
        return first, last

    def ranges(self, rows):
        low, high = rows.bounds
        first, _ = self._reach(low, rows.num_keys)
        _, last = self._reach(high, rows.num_keys)
        return merge([range(max(first, 0), min(last + 1, rows.num_keys))])

    def block(self, rows, keys):
        low, high = rows.bounds
        # The first row reaches furthest left, the last row furthest right.
        (widest_first, narrow_last), (narrow_first, widest_last) = (
            self._reach(low, rows.num_keys),
            self._reach(high, rows.num_keys),
        )
        if keys.stop <= widest_first or keys.start > widest_last:
            return False
        if keys.start >= narrow_first and keys.stop - 1 <= narrow_last:
            return True
        ahead = rows.key_positions(keys) - rows.positions
        keep = torch.ones_like(ahead, dtype=torch.bool) if self.left is None else ahead > -self.left
        return keep if self.right is None else keep & (ahead <= self.right)


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """Every query may look at the first `lengths` keys."""

    lengths: Tensor

    @cached_property
    def longest(self) -> int:
        return int(self.lengths.max()) if self.lengths.numel() else 0

    def ranges(self, rows):
        return merge([range(min(self.longest, rows.num_keys))])

    def block(self, rows, keys):
        if self.lengths.dim() == 0:
            if keys.stop <= self.longest or keys.start >= self.longest:
                return keys.stop <= self.longest
            lengths = self.lengths
        else:
            lengths = self.lengths[rows.batch][:, None, None, None]
        return rows.key_positions(keys) < lengths.to(rows.device)

    @property
    def tensors(self):
        return (self.lengths,)

    def misfits(self, B, H, L, S):
        found = []
        if self.lengths.dim() and len(self.lengths) != B:
            found.append(f"lengths has {len(self.lengths)} entries, the batch has {B} items")
        if self.lengths.dim() and readable(self.lengths) and self.longest > S:
            found.append(f"lengths has one of {self.longest}, more than the {S} keys")
        return found


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Only real tokens may be looked at: `keep` is (B, S), True = real token."""

    keep: Tensor

    @cached_property
    def _reach(self) -> Tensor:
        """First and one past the last real token of each batch item, (B, 2) on the CPU."""
        if self.keep.shape[1] == 0:
            return torch.zeros(len(self.keep), 2, dtype=torch.int64)
        any_real = self.keep.any(1)
        first = self.keep.int().argmax(1)
        stop = self.keep.shape[1] - self.keep.flip(1).int().argmax(1)
        return torch.stack([first * any_real, stop * any_real], 1).cpu()

    def ranges(self, rows):
        reach = self._reach[_on_cpu(rows.batch)]
        if len(reach) == 0:
            return []
        return merge([range(int(reach[:, 0].min()), int(reach[:, 1].max()))])

    def block(self, rows, keys):
        return self.keep[rows.batch, keys.start : keys.stop][:, None, None, :]

    @property
    def tensors(self):
        return (self.keep,)

    def misfits(self, B, H, L, S):
        return (
            []
            if self.keep.shape == (B, S)
            else [f"padding is {tuple(self.keep.shape)}, expected (B, S) = {(B, S)}"]
        )


@dataclass(frozen=True, eq=False)
class Documents(Mask):
    """A query sees the keys of its own document. Ids are (N,) or (B, N); a negative id sees nothing, nobody sees it.

    Without `key_ids` the ids are those of the keys, and a query takes the id at its position. With them, `query_ids`
    are the queries' own.
    """

    ids: Tensor
    key_ids: Tensor | None = None

    def _of_keys(self, rows: Rows) -> Tensor:
        ids = self.ids if self.key_ids is None else self.key_ids
        return ids[None] if ids.dim() == 1 else ids[rows.batch]

    def _of_rows(self, rows: Rows) -> Tensor:
        """Ids of the rows, (1 or B, rows); rows that stand outside the ids are negative."""
        ids = self.ids[None] if self.ids.dim() == 1 else self.ids[rows.batch]
        if self.key_ids is not None:
            return ids[:, rows.index]
        positions = rows.positions[None, :, 0] if rows.positions.dim() == 2 else rows.positions[:, 0, :, 0]
        size = max(len(ids), len(positions))
        ids, positions = ids.expand(size, -1), positions.expand(size, -1)
        inside = (positions >= 0) & (positions < ids.shape[1])
        if ids.shape[1] == 0:
            return torch.full_like(positions, -1)
        return torch.where(inside, ids.gather(1, positions.clamp(0, ids.shape[1] - 1)), -1)

    def ranges(self, rows):
        of_rows, of_keys = self._of_rows(rows), self._of_keys(rows)
        wanted = of_rows[of_rows >= 0]
        if wanted.numel() == 0:
            return []
        reached = torch.isin(of_keys, wanted.unique()).any(0).nonzero()
        return [range(int(reached[0]), int(reached[-1]) + 1)] if len(reached) else []

    def block(self, rows, keys):
        of_rows = self._of_rows(rows)[:, None, :, None]
        of_keys = self._of_keys(rows)[:, None, None, keys.start : keys.stop]
        return (of_rows == of_keys) & (of_rows >= 0)

    @property
    def tensors(self):
        return (self.ids,) if self.key_ids is None else (self.ids, self.key_ids)

    def misfits(self, B, H, L, S):
        of_keys = self.ids if self.key_ids is None else self.key_ids
        found = (
            [] if of_keys.shape[-1] == S else [f"documents names {of_keys.shape[-1]} keys, the call has {S}"]
        )
        if self.key_ids is not None and self.ids.shape[-1] != L:
            found.append(f"documents names {self.ids.shape[-1]} queries, the call has {L}")
        for ids in self.tensors:
            if ids.dim() == 2 and len(ids) != B:
                found.append(f"documents has {len(ids)} rows of ids, the batch has {B} items")
        return found


def _on_cpu(index: slice | Tensor) -> slice | Tensor:
    return index.cpu() if isinstance(index, Tensor) else index
