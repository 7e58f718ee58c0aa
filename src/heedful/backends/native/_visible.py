"""Masks and biases as the kernel takes them: one range of keys per query, and dense parts where that is not all.

Ranges cost nothing per pair, and keys outside of them are never touched. Everything else is asked for some rows at a
time, so that nothing of size L x S is made.
"""

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from ..._call import Call, TensorBias
from ..._rows import Rows
from ...masks import Dense
from ...positions import Alibi
from ._library import DTYPES, in_memory
from ._ranges import Ranges, split

ELEMENTS = 2**23


@dataclass(frozen=True)
class Visible:
    """What the kernel is told about masks and biases for some rows. None: nothing to tell.

    Attributes:
        first: (1 or B, rows) int32, the first key that each query sees.
        last: Likewise, one past its last key.
        mask: (B, H, rows, S) bool, broadcast where it repeats.
        bias: (B, H, rows, S), likewise.
        slopes: (H,) float32 of ALiBi.
    """

    first: Tensor | None = None
    last: Tensor | None = None
    mask: Tensor | None = None
    bias: Tensor | None = None
    slopes: Tensor | None = None


EVERYTHING = Visible()


class Restrictions:
    """The mask and the biases of a call."""

    def __init__(self, call: Call):
        self.call, self.rows = call, call.rows
        self.ranges, self.rest = split(call.mask, call.rows)
        alibi = [term for term in call.bias if type(term) is Alibi]
        self.alibi = alibi[0] if len(alibi) == 1 else None
        self.terms = [term for term in call.bias if term is not self.alibi]
        if self.alibi is not None:
            self.alibi.bias(call.rows, range(0))  # it complains where it is for another number of heads

    def steps(self, dense: bool = False) -> list[slice]:
        """The queries, cut so that the dense parts that must be made have at most about ELEMENTS elements.

        Args:
            dense: Whether something of the size of the weights is made of each part.
        """
        B, H, num_rows = self.rows.shape
        row = 0 if self._in_memory() else self._elements_per_row()
        row = B * H * self.rows.num_keys if dense else row
        step = max(1, ELEMENTS // row if row else num_rows)
        return [slice(start, min(start + step, num_rows)) for start in range(0, max(num_rows, 1), step)]

    def of(self, index: slice) -> Visible:
        """What to tell about the queries of `index`."""
        if self.ranges is None and self.rest is None and not self.call.bias:
            return EVERYTHING
        rows = self._part(index)
        limits = self.ranges
        if limits is not None:
            limits = Ranges(limits.first[:, index], limits.last[:, index])
        mask = self._mask(rows)
        if self.rest is not None:
            limits = self._reach(rows) if limits is None else limits & self._reach(rows)
        return Visible(
            None if limits is None else limits.first.clamp(0, rows.num_keys).int().contiguous(),
            None if limits is None else limits.last.clamp(0, rows.num_keys).int().contiguous(),
            None if mask is None else mask.expand(*rows.shape, rows.num_keys),
            self._bias(rows),
            None if self.alibi is None else self.alibi.slopes(device="cpu")[rows.heads].contiguous(),
        )

    def _part(self, index: slice) -> Rows:
        B, H, _ = self.rows.shape
        return self.rows.part(slice(0, B), slice(0, H), index)

    def _in_memory(self) -> bool:
        """Whether dense parts are given as tensors, so that taking them makes nothing."""
        mask = self.rest is None or isinstance(self.rest, Dense)
        bias = not self.terms or (
            len(self.terms) == 1
            and isinstance(self.terms[0], TensorBias)
            and self.terms[0].tensor.dtype in DTYPES
        )
        return self.rows.is_view and mask and bias

    def _elements_per_row(self) -> int:
        row = self._part(slice(0, min(1, self.rows.shape[2])))
        mask, bias = self._mask(row), self._bias(row)
        return sum(x.untyped_storage().nbytes() // 4 for x in (mask, bias) if x is not None)

    def _mask(self, rows: Rows) -> Tensor | None:
        if self.rest is None:
            return None
        block = self.rest.seen(rows, range(rows.num_keys))
        return torch.full((1, 1, 1, 1), block, device="cpu") if isinstance(block, bool) else block

    def _reach(self, rows: Rows) -> Ranges:
        """From the first to the last key that these rows can reach at all."""
        assert self.rest is not None
        reach = self.rest.ranges(rows)
        first, last = (reach[0].start, reach[-1].stop) if reach else (0, 0)
        return Ranges(*(torch.full((1, rows.shape[2]), end, device="cpu") for end in (first, last)))

    def _bias(self, rows: Rows) -> Tensor | None:
        keys = range(rows.num_keys)
        blocks = [in_memory(term.bias(rows, keys)) for term in self.terms]
        if not blocks:
            return None
        bias = blocks[0]
        if len(blocks) > 1 or bias.dtype not in DTYPES:
            bias = reduce(torch.add, (block.float() for block in blocks))
        for block in blocks if len(blocks) > 1 else ():
            bias = bias.masked_fill(block == -torch.inf, -torch.inf)  # it forbids, whatever the others say
        return bias.expand(*rows.shape, rows.num_keys)
