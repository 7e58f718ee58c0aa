"""Masks as one range of keys per query, wherever that says it all."""

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from ..._rows import Rows
from ...masks import Mask
from ...masks._algebra import And, Or
from ...masks._patterns import Documents, Padding, Prefix, Window

MANY_PAIRS = 2**22  # of queries and keys: below, it does not matter which are skipped


@dataclass(frozen=True)
class Ranges:
    """The keys from `first` to `last` - 1 of every query, (1 or B, rows) integers."""

    first: Tensor
    last: Tensor

    def __and__(self, other: "Ranges") -> "Ranges":
        return Ranges(torch.maximum(self.first, other.first), torch.minimum(self.last, other.last))

    def __or__(self, other: "Ranges") -> "Ranges | None":
        """Both together, where that is one range for every query."""
        mine, theirs = self.last > self.first, other.last > other.first
        apart = torch.maximum(self.first, other.first) > torch.minimum(self.last, other.last)
        if bool((apart & mine & theirs).any()):
            return None
        first = torch.where(
            mine,
            torch.where(theirs, torch.minimum(self.first, other.first), self.first),
            other.first,
        )
        last = torch.where(
            mine,
            torch.where(theirs, torch.maximum(self.last, other.last), self.last),
            other.last,
        )
        return Ranges(first, last)


def ranges(mask: Mask, rows: Rows) -> Ranges | None:
    """The mask as one range per query, or None where it is more than that."""
    match mask:
        case Window():
            return _window(mask, rows)
        case Prefix():
            lengths = mask.lengths[None] if mask.lengths.dim() == 0 else mask.lengths[rows.batch]
            last = lengths.long()[:, None].expand(-1, rows.shape[2])
            return Ranges(torch.zeros_like(last), last)
        case Padding():
            return _padding(mask.keep[rows.batch], rows)
        case Documents():
            return _documents(mask, rows)
        case And() | Or():
            parts = [ranges(part, rows) for part in mask.parts]
            merge = Ranges.__and__ if isinstance(mask, And) else Ranges.__or__
            return reduce(lambda a, b: None if a is None or b is None else merge(a, b), parts)
    return None


def lies_apart(mask: Mask, rows: Rows) -> bool:
    """Whether most keys between the first and the last that queries reach are out of reach: a sink and a window."""
    if not _has_alternatives(mask):
        return False
    B, H, num_rows = rows.shape
    if B * H * num_rows * rows.num_keys < MANY_PAIRS:
        return False
    step = max(1, num_rows // 16)
    reached = between = 0
    for start in range(0, num_rows, step):
        block = rows.part(slice(0, B), slice(0, H), slice(start, min(start + step, num_rows)))
        reach = mask.ranges(block)
        if reach:
            reached += sum(map(len, reach))
            between += reach[-1].stop - reach[0].start
    return 2 * reached < between and ranges(mask, rows) is None


def _has_alternatives(mask: Mask) -> bool:
    return isinstance(mask, Or) or (isinstance(mask, And) and any(map(_has_alternatives, mask.parts)))


def split(mask: Mask | None, rows: Rows) -> tuple[Ranges | None, Mask | None]:
    """A mask as a range per query (None: all keys), and the mask that is left to ask block by block."""
    if mask is None:
        return None, None
    whole = ranges(mask, rows)
    if whole is not None or not isinstance(mask, And):
        return whole, None if whole is not None else mask
    found = [(ranges(part, rows), part) for part in mask.parts]
    simple = [each for each, _ in found if each is not None]
    rest = tuple(part for each, part in found if each is None)
    return reduce(Ranges.__and__, simple) if simple else None, rest[0] if len(rest) == 1 else And(rest)


def _window(mask: Window, rows: Rows) -> Ranges:
    positions = rows.positions_of_items
    first = torch.zeros_like(positions) if mask.left is None else positions - (mask.left - 1)
    last = torch.full_like(positions, rows.num_keys) if mask.right is None else positions + (mask.right + 1)
    return Ranges(first, last)


def _padding(keep: Tensor, rows: Rows) -> Ranges | None:
    """Real tokens that lie together."""
    first = keep.int().argmax(1, keepdim=True)
    last = first + keep.sum(1, keepdim=True)
    place = torch.arange(keep.shape[1], device=keep.device)
    if not torch.equal((place >= first) & (place < last), keep):
        return None
    return Ranges(first.expand(-1, rows.shape[2]), last.expand(-1, rows.shape[2]))


def _documents(mask: Documents, rows: Rows) -> Ranges | None:
    """Documents whose keys lie together."""
    of_rows, of_keys = mask._of_rows(rows), mask._of_keys(rows)
    size = max(len(of_rows), len(of_keys))
    first, last = [], []
    for wanted, ids in zip(of_rows.expand(size, -1), of_keys.expand(size, -1), strict=True):
        documents, lengths = torch.unique_consecutive(ids, return_counts=True)
        documents, order = documents.sort()
        again = documents[1:] == documents[:-1]
        if bool((again & (documents[1:] >= 0)).any()):
            return None
        ends = lengths.cumsum(0)[order]
        place = torch.searchsorted(documents, wanted.contiguous()).clamp(max=len(documents) - 1)
        known = (documents[place] == wanted) & (wanted >= 0)
        last.append(torch.where(known, ends[place], 0))
        first.append(torch.where(known, ends[place] - lengths[order][place], 0))
    return Ranges(torch.stack(first), torch.stack(last)) if size else None
