"""How a call is cut into panels."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..._call import Call
from ..._rows import Rows
from ...masks._algebra import Block
from .._product import EVEN, suits

# Products of few rows are slow, and a large panel leaves the cache: a panel has up to so many rows, and weights.
ROWS = 512
ELEMENTS = {"cpu": 2**21}
MANY_ELEMENTS = 2**27
FEW_ROWS = 128  # which it has even where they are more weights than that


@dataclass(frozen=True, eq=False)
class Part:
    """One panel's place in a call: some batch items, heads and queries, and the keys those can reach."""

    batch: slice
    heads: slice
    groups: slice
    index: slice
    rows: Rows
    pieces: tuple[tuple[range, Block], ...]
    spans: tuple[range, ...]

    @cached_property
    def masked(self) -> list[tuple[slice, Tensor]]:
        """Columns of the panel that hold masked pairs, and which pairs those are."""
        found, column = [], 0
        for keys, block in self.pieces:
            if isinstance(block, Tensor):
                found.append((slice(column, column + len(keys)), ~block))
            column += len(keys)
        return found

    def of_rows(self, x: Tensor) -> Tensor:
        """(B, H, L, ...) -> (batch, heads, rows, ...)."""
        return x[self.batch, self.heads, self.index]

    def of_keys(self, x: Tensor) -> Tensor:
        """(B, G, S, ...) -> (batch, groups, keys, ...); a view where the keys are one range."""
        spans = [x[self.batch, self.groups, span.start : span.stop] for span in self.spans]
        return spans[0] if len(spans) == 1 else torch.cat(spans, 2)

    def add_to_keys(self, total: Tensor, x: Tensor) -> None:
        """Add (batch, groups, keys, ...) to its place in (B, G, S, ...)."""
        for span, share in zip(self.spans, x.split([len(span) for span in self.spans], 2), strict=True):
            total[self.batch, self.groups, span.start : span.stop] += share


def chunks(size: int, step: int) -> list[slice]:
    """A dimension cut into steps; one empty step for an empty dimension."""
    return [slice(start, min(start + step, size)) for start in range(0, max(size, 1), step)]


def plan(call: Call) -> Iterator[Part]:
    """The parts of a call: batch items, then rows, then heads. It depends on sizes, dtype, mask and processor.

    The last rows come first. Under a causal mask they see the most keys, and what was freed serves the smaller panels.
    """
    B, H, L, _ = call.query.shape
    G, S = call.key.shape[1:3]
    per_group = max(H // max(G, 1), 1)
    elements = ELEMENTS.get(call.query.device.type, MANY_ELEMENTS)
    # torch.matmul gives two heads to two threads whole, and halves one head badly.
    least_heads = 1 if S % EVEN == 0 and suits(call.query.dtype, call.query.device) else 2
    row_step = _row_step(call, ROWS // least_heads, elements // least_heads)
    budget = elements // 2  # several heads are as quick in smaller panels
    for batch in chunks(B, max(1, budget // max(H * row_step * S, 1))):
        size = (batch.stop - batch.start) * row_step * _reach(call, batch, row_step)
        head_step = _head_step(per_group, max(least_heads, budget // max(size, 1)))
        for index in reversed(chunks(L, row_step)):
            rows = call.rows.part(batch, slice(0, H), index)
            pieces = [(range(S), True)] if call.mask is None else call.mask.pieces(rows)
            pieces = pieces or [(range(1), torch.zeros(1, 1, dtype=torch.bool, device=rows.device))]
            spans = _spans([keys for keys, _ in pieces])
            for heads in chunks(H, head_step):
                groups = slice(heads.start // per_group, (heads.stop - 1) // per_group + 1)
                yield Part(
                    batch,
                    heads,
                    groups,
                    index,
                    rows.part(slice(0, rows.shape[0]), heads, slice(0, rows.shape[2])),
                    tuple((keys, _of_heads(block, heads)) for keys, block in pieces),
                    spans,
                )


def _row_step(call: Call, most: int, elements: int) -> int:
    """Rows of a panel: fewer where there are many keys, and where rows next to each other see different ones."""
    L, S = call.query.shape[2], call.key.shape[2]
    step = max(1, min(L, most))
    if step <= FEW_ROWS:
        return step
    fitting = elements // max(S, 1)
    if call.mask is not None:
        fitting = min(fitting, _reach(call, slice(0, 1), FEW_ROWS) // 4)
    return max(FEW_ROWS, min(step, fitting) // EVEN * EVEN)


def _reach(call: Call, batch: slice, row_step: int) -> int:
    """About how many keys a block of rows can reach: the most among the first, the middle and the last block."""
    H, L = call.query.shape[1:3]
    if call.mask is None:
        return call.key.shape[2]
    blocks = chunks(L, row_step)
    some = (call.rows.part(batch, slice(0, H), blocks[n]) for n in (0, len(blocks) // 2, -1))
    return max(sum(map(len, call.mask.ranges(rows))) for rows in some)


def _head_step(per_group: int, wanted: int) -> int:
    """Heads per panel: whole groups, or an even part of one."""
    if wanted >= per_group:
        return wanted // per_group * per_group
    return next(step for step in range(max(wanted, 1), 0, -1) if per_group % step == 0)


def _of_heads(block: Block, heads: slice) -> Block:
    if isinstance(block, Tensor) and block.dim() == 4 and block.shape[1] > 1:
        return block[:, heads]
    return block


def _spans(keys: list[range]) -> tuple[range, ...]:
    spans: list[range] = []
    for part in keys:
        if spans and spans[-1].stop == part.start:
            spans[-1] = range(spans[-1].start, part.stop)
        else:
            spans.append(part)
    return tuple(spans)
