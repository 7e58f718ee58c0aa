"""Masks: who may look at whom. True means "may attend", everywhere.

A mask is a rule, not a matrix. It answers two questions about a block of query rows: which keys can they reach
(`ranges`), and who sees whom among these rows and those keys (`block`). So a window costs what it covers.
"""

import operator
from dataclasses import dataclass
from functools import cached_property, reduce

import torch
from torch import Tensor

from ._rows import Rows

Block = bool | Tensor
PIECE = 512


def _merge(ranges: list[range]) -> list[range]:
    """Sorted, disjoint, non-empty ranges that cover the same keys."""
    merged: list[range] = []
    for part in sorted((r for r in ranges if len(r)), key=lambda r: r.start):
        if merged and part.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, part.stop))
        else:
            merged.append(part)
    return merged


def _overlap(left: list[range], right: list[range]) -> list[range]:
    return _merge([range(max(a.start, b.start), min(a.stop, b.stop)) for a in left for b in right])


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

    def pieces(self, rows: Rows) -> list[tuple[range, Block]]:
        """The keys these rows can reach, cut so that stretches seen by every row need no test."""
        pieces: list[tuple[range, Block]] = []
        for reach in self.ranges(rows):
            for start in range(reach.start, reach.stop, PIECE):
                keys = range(start, min(start + PIECE, reach.stop))
                block = self.block(rows, keys)
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
        rows = Rows(everything, everything, slice(0, L), start, S, device)
        block = self.block(rows, range(S))
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

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Let `tensor & mask` reach `__rand__`; no other torch function takes a mask."""
        swapped = {torch.Tensor.__and__: operator.and_, torch.Tensor.__or__: operator.or_}.get(func)
        if swapped is None:
            return NotImplemented
        return swapped(args[1], args[0])


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
        return _merge([range(max(first, 0), min(last + 1, rows.num_keys))])

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
        if self.left is None:
            return ahead <= self.right
        return ahead > -self.left if self.right is None else (ahead > -self.left) & (ahead <= self.right)


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """Every query may look at the first `lengths` keys."""

    lengths: Tensor

    @cached_property
    def longest(self) -> int:
        return int(self.lengths.max()) if self.lengths.numel() else 0

    def ranges(self, rows):
        return _merge([range(min(self.longest, rows.num_keys))])

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
        if self.longest > S:
            found.append(f"a length of {self.longest} is more than the {S} keys")
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
        return _merge([range(int(reach[:, 0].min()), int(reach[:, 1].max()))])

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

    @property
    def tensors(self):
        return tuple(tensor for part in self.parts for tensor in part.tensors)

    def misfits(self, B, H, L, S):
        return [complaint for part in self.parts for complaint in part.misfits(B, H, L, S)]


class And(_Combined):
    """All of the rules."""

    def ranges(self, rows):
        return reduce(_overlap, (part.ranges(rows) for part in self.parts))

    def block(self, rows, keys):
        blocks = []
        for part in self.parts:
            block = part.block(rows, keys)
            if block is False:
                return False
            if block is not True:
                blocks.append(block)
        return reduce(operator.and_, blocks) if blocks else True


class Or(_Combined):
    """Any of the rules."""

    def ranges(self, rows):
        return _merge([found for part in self.parts for found in part.ranges(rows)])

    def block(self, rows, keys):
        blocks = []
        for part in self.parts:
            block = part.block(rows, keys)
            if block is True:
                return True
            if block is not False:
                blocks.append(block)
        return reduce(operator.or_, blocks) if blocks else False


@dataclass(frozen=True)
class Not(Mask):
    """Whoever the rule does not allow."""

    mask: Mask

    def block(self, rows, keys):
        block = self.mask.block(rows, keys)
        return not block if isinstance(block, bool) else ~block

    @property
    def tensors(self):
        return self.mask.tensors

    def misfits(self, B, H, L, S):
        return self.mask.misfits(B, H, L, S)


def causal() -> Mask:
    """A query sees the keys up to its own position.

    The last query stands at the last key (what a cache needs); `query_start=0` in the call gives torch's `is_causal`.
    """
    return Window(None, 0)


def window(left: int | None, right: int | None = 0) -> Mask:
    """A query sees `left` keys ending with its own position, and `right` keys after it.

    Args:
        left: How many keys up to and including the query's own position; at least 1. None: all of them.
        right: How many keys after it. None: all of them.

    Note: flash-attn and ONNX do not count the query itself: their `left` is this one less 1.
    """
    for name, size, least in (("left", left, 1), ("right", right, 0)):
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < least):
            raise ValueError(
                f"window(): {name} must be None or an integer of at least {least}, got {size!r}. "
                "left counts the query itself, so window(1) sees the query's own position only."
            )
    return Window(left, right)


def prefix(lengths: int | Tensor) -> Mask:
    """Every query sees the first `lengths` keys (with `causal() |`, a prefix language model).

    Args:
        lengths: One number, or one per batch item (B,).
    """
    return Prefix(_integers("prefix", "lengths", lengths))


def padding(keep: Tensor) -> Mask:
    """Only real tokens may be looked at.

    Args:
        keep: (B, S) bool or integer 0/1, True = real token; what tokenizers call attention_mask.
    """
    return Padding(_boolean("padding", "keep", keep, dims=2, shape="(B, S)"))


def lengths(n: Tensor) -> Mask:
    """The first `n` keys of each batch item are real tokens, the rest is padding.

    Args:
        n: (B,) integers.
    """
    n = _integers("lengths", "n", n)
    if n.dim() != 1:
        raise ValueError(f"lengths(): n must be (B,), one length per batch item, got shape {tuple(n.shape)}.")
    return Prefix(n)


def documents(ids: Tensor, key_ids: Tensor | None = None) -> Mask:
    """Packed documents: a query sees the keys of its own document (combine with `causal()` for a language model).

    Args:
        ids: Document of each key, (S,) or (B, S); a query takes the id at its position, so that with fewer queries
            than keys they are the last L. A negative id sees nothing and is seen by nobody (padding).
        key_ids: For cross-attention: then `ids` are the queries' own, (L,) or (B, L), and these the keys'.
    """
    for name, tensor in (("ids", ids), ("key_ids", key_ids)):
        if tensor is None and name == "key_ids":
            continue
        if not isinstance(tensor, Tensor) or tensor.dtype.is_floating_point or tensor.dim() not in (1, 2):
            raise ValueError(
                f"documents(): {name} must be an integer tensor (S,) or (B, S), got {_describe(tensor)}. "
                "Give every token the number of its document, for example torch.tensor([0, 0, 1, 1, 1, -1])."
            )
    return Documents(ids.long(), None if key_ids is None else key_ids.long())


def dense(keep: Tensor) -> Mask:
    """A mask given in full.

    Args:
        keep: bool or integer 0/1, True = may attend; (L, S), or (B, H, L, S) with sizes of 1 where it repeats.

    Cost: the tensor itself, which is read block by block and never copied.
    """
    keep = _boolean("dense", "keep", keep)
    if keep.dim() not in (2, 4):
        raise ValueError(
            f"dense(): keep must be (L, S) or (B, H, L, S), got shape {tuple(keep.shape)}. "
            "For one mask per batch item write keep[:, None], for one per head keep[None]."
        )
    return Dense(keep if keep.dim() == 4 else keep[None, None])


def as_mask(mask: Mask | Tensor) -> Mask:
    """A mask as it is, a tensor as `dense`."""
    return mask if isinstance(mask, Mask) else dense(mask)


def _on_cpu(index: slice | Tensor) -> slice | Tensor:
    return index.cpu() if isinstance(index, Tensor) else index


def _describe(value: object) -> str:
    return (
        f"{value.dtype} {tuple(value.shape)}".replace("torch.", "")
        if isinstance(value, Tensor)
        else repr(value)
    )


def _integers(function: str, name: str, value: int | Tensor) -> Tensor:
    if isinstance(value, int) and not isinstance(value, bool):
        value = torch.tensor(value)
    if (
        not isinstance(value, Tensor)
        or value.dtype.is_floating_point
        or value.dtype == torch.bool
        or value.dim() > 1
    ):
        raise ValueError(
            f"{function}(): {name} must be an integer or an integer tensor (B,), got {_describe(value)}."
        )
    if value.numel() and int(value.min()) < 0:
        raise ValueError(f"{function}(): {name} must not be negative, got {value.tolist()}.")
    return value


def _boolean(function: str, name: str, value: Tensor, dims: int | None = None, shape: str = "") -> Tensor:
    """A bool tensor from a bool or integer 0/1 tensor."""
    if not isinstance(value, Tensor) or value.dtype.is_floating_point or value.dtype.is_complex:
        raise TypeError(
            f"{function}(): {name} must be a bool or integer 0/1 tensor, got {_describe(value)}. "
            "True or 1 = may attend. For a float tensor, write mask=(m != 0) if it holds 0 and 1, "
            "or attn_bias=m if it is added to the scores."
        )
    if dims is not None and value.dim() != dims:
        raise ValueError(f"{function}(): {name} must be {shape}, got shape {tuple(value.shape)}.")
    if value.dtype == torch.bool:
        return value
    if value.numel() and not (value.device.type == "meta") and bool(((value != 0) & (value != 1)).any()):
        raise ValueError(
            f"{function}(): {name} must hold 0 and 1 only, got values from {int(value.min())} to {int(value.max())}. "
            "1 = may attend. Numbers to add to the scores go into attn_bias."
        )
    return value != 0
