"""The algebra of masks: what a mask answers, and how masks combine.

A mask is a rule, not a matrix. It answers two questions about a block of query rows: which keys can they reach
(`ranges`), and who sees whom among these rows and those keys (`block`). So a window costs what it covers.
"""

import operator
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from .._checks import boolean, broadcasts, describe
from .._rows import Rows

Block = bool | Tensor
PIECE = 512
# What torch calls `&` and `|`; under the second names where a compiler looks.
AND = (torch.Tensor.__and__, torch.Tensor.bitwise_and)
OR = (torch.Tensor.__or__, torch.Tensor.bitwise_or)


def merge(ranges: list[range]) -> list[range]:
    """Sorted, disjoint, non-empty ranges that cover the same keys."""
    merged: list[range] = []
    for part in sorted((r for r in ranges if len(r)), key=lambda r: r.start):
        if merged and part.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, part.stop))
        else:
            merged.append(part)
    return merged


def overlap(left: list[range], right: list[range]) -> list[range]:
    return merge([range(max(a.start, b.start), min(a.stop, b.stop)) for a in left for b in right])


class Mask:
    """A rule that says which query may look at which key. Combine rules with `&`, `|` and `~`.

    Queries have positions: query `i` stands at `query_start + i` among the keys, and `query_start` is `S - L`
    unless the call says otherwise, so that the last query stands at the last key.

    A mask of your own subclasses `Mask` and defines `block`, and `ranges` where it can say more than "any key".
    """

    def ranges(self, rows: Rows) -> list[range]:
        """Sorted, disjoint ranges of keys that these rows can reach; they may be wider than needed, never narrower."""
        return [range(rows.num_keys)] if rows.num_keys else []

    def block(self, rows: Rows, keys: range) -> Block:
        """Who sees whom: True (all), False (nobody), or a bool tensor broadcastable to (B, H, rows, keys)."""
        raise NotImplementedError(f"{type(self).__name__} must define block(rows, keys)")

    def seen(self, rows: Rows, keys: range) -> Block:
        """`block`, or TypeError where a mask of the caller's own returns something else."""
        block = self.block(rows, keys)
        if isinstance(block, bool):
            return block
        sizes = rows.shape[2], len(keys)
        if isinstance(block, Tensor) and block.dtype == torch.bool and broadcasts(block.shape[-2:], sizes):
            return block
        raise TypeError(
            f"mask: {type(self).__name__}.block() must return True, False, or a bool tensor that broadcasts to "
            f"(batch, heads, {sizes[0]}, {sizes[1]}), True = may attend; got {describe(block)}."
        )

    def pieces(self, rows: Rows) -> list[tuple[range, Block]]:
        """The keys these rows can reach, cut so that stretches seen by every row need no test."""
        pieces: list[tuple[range, Block]] = []
        for reach in self.ranges(rows):
            for start in range(reach.start, reach.stop, PIECE):
                keys = range(start, min(start + PIECE, reach.stop))
                block = self.seen(rows, keys)
                if block is True and pieces and pieces[-1][1] is True and pieces[-1][0].stop == start:
                    pieces[-1] = (range(pieces[-1][0].start, keys.stop), True)
                elif block is not False:
                    pieces.append((keys, block))
        return pieces

    def to_dense(self, L: int, S: int, query_start: int | Tensor | None = None) -> Tensor:
        """The mask as a bool tensor broadcastable to (B, H, L, S), True = may attend.

        Args:
            L: Number of queries.
            S: Number of keys.
            query_start: Position of the first query among the keys, int or (B,). None: `S - L`.

        Cost: L x S booleans (times batch and heads where the rule differs between them).
        """
        start = S - L if query_start is None else query_start
        everything = slice(0, torch.iinfo(torch.int64).max)
        device = next((tensor.device for tensor in self.tensors), torch.device("cpu"))
        rows = Rows(everything, everything, slice(0, L), start, 1, 1, L, S, device)
        block = self.seen(rows, range(S))
        if isinstance(block, bool):
            return torch.full((L, S), block, device=device)
        return block.expand(*block.shape[:-2], L, S)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors the rule is made of."""
        return ()

    def misfits(self, B: int, H: int, L: int, S: int) -> list[str]:
        """Why the rule cannot be meant for a call of these sizes: one sentence each, none when it fits."""
        return []

    def __and__(self, other: "Mask | Tensor") -> "Mask":
        return And((self, as_mask(other)))

    def __or__(self, other: "Mask | Tensor") -> "Mask":
        return Or((self, as_mask(other)))

    def __invert__(self) -> "Mask":
        return Not(self)

    __rand__ = __and__
    __ror__ = __or__

    def __bool__(self) -> bool:
        """Neither true nor false, or `a and b` would be `b` alone."""
        raise TypeError(
            "A mask is neither true nor false. Combine masks with &, | and ~ instead of and, or and not; "
            "to ask whether there is one, write `mask is not None`."
        )

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Let `tensor & mask` reach `__rand__`; no other torch function takes a mask."""
        if func in AND:
            return args[1].__and__(args[0])
        return args[1].__or__(args[0]) if func in OR else NotImplemented


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """A mask given as a tensor (B or 1, H or 1, L or 1, S or 1)."""

    keep: Tensor

    def block(self, rows, keys):
        return rows.of(self.keep, keys)

    @property
    def tensors(self):
        return (self.keep,)

    def misfits(self, B, H, L, S):
        sizes = zip(self.keep.shape, (B, H, L, S), strict=True)
        if all(size in (1, wanted) for size, wanted in sizes):
            return []
        return [
            f"the dense mask is {tuple(self.keep.shape)}, expected (B, H, L, S) = {(B, H, L, S)}, or 1 where it repeats"
        ]


@dataclass(frozen=True)
class _Combined(Mask):
    parts: tuple[Mask, ...]

    def _combined(
        self, rows: Rows, keys: range, settled: bool, combine: Callable[[Tensor, Tensor], Tensor]
    ) -> Block:
        """The blocks of the parts, combined; one part that says `settled` decides."""
        blocks = []
        for part in self.parts:
            block = part.seen(rows, keys)
            if isinstance(block, Tensor):
                blocks.append(block)
            elif block is settled:
                return settled
        return reduce(combine, blocks) if blocks else not settled

    @property
    def tensors(self):
        return tuple(tensor for part in self.parts for tensor in part.tensors)

    def misfits(self, B, H, L, S):
        return [complaint for part in self.parts for complaint in part.misfits(B, H, L, S)]


class And(_Combined):
    """All of the rules."""

    def ranges(self, rows):
        return reduce(overlap, (part.ranges(rows) for part in self.parts))

    def block(self, rows, keys):
        return self._combined(rows, keys, settled=False, combine=operator.and_)


class Or(_Combined):
    """Any of the rules."""

    def ranges(self, rows):
        return merge([found for part in self.parts for found in part.ranges(rows)])

    def block(self, rows, keys):
        return self._combined(rows, keys, settled=True, combine=operator.or_)


@dataclass(frozen=True)
class Not(Mask):
    """Whoever the rule does not allow."""

    mask: Mask

    def block(self, rows, keys):
        block = self.mask.seen(rows, keys)
        return not block if isinstance(block, bool) else ~block

    @property
    def tensors(self):
        return self.mask.tensors

    def misfits(self, B, H, L, S):
        return self.mask.misfits(B, H, L, S)


def dense(keep: Tensor) -> Mask:
    """A mask given in full.

    Args:
        keep: bool or integer 0/1, True = may attend; (L, S), or (B, H, L, S) with sizes of 1 where it repeats.

    Cost: the tensor itself, which is read block by block and never copied.
    """
    keep = boolean("dense(): keep", keep)
    if keep.dim() not in (2, 4):
        raise ValueError(
            f"dense(): keep must be (L, S) or (B, H, L, S), got shape {tuple(keep.shape)}. "
            "For one mask per batch item write keep[:, None], for one per head keep[None]."
        )
    return Dense(keep if keep.dim() == 4 else keep[None, None])


def as_mask(mask: Mask | Tensor) -> Mask:
    """A mask as it is, a tensor as `dense`."""
    if not isinstance(mask, Mask | Tensor):
        given = type(mask).__name__ if mask is None else f"{type(mask).__name__} {reprlib.repr(mask)}"
        raise TypeError(
            f"A mask combines with masks and with bool tensors, got {given}. "
            "Who may look is said by masks.causal(), masks.window(3) and others, or by a tensor, True = may attend."
        )
    return mask if isinstance(mask, Mask) else dense(mask)
