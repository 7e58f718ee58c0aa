"""Answers per head: how far it looks, and a small picture of where."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .._checks import at_least_one, integer_tuple, one_of
from .._rows import Rows
from ._protocol import Panel, Reduction
from ._rows import membership


@dataclass(frozen=True)
class DistanceProfile(Reduction):
    """How far a head looks: the share of its attention at every distance, (..., H, D), in positions, sign dropped.

    Entry d is the weight on keys at distance d, averaged over the queries that see anything, so the profile sums to 1
    (to less where there is a sink). D is the farthest distance that the call has, plus 1.
    """

    place = "heads"

    def panel(self, panel):
        seen = panel.visible.any(-1).sum(-1).to(panel.weights.dtype)
        return _by_distance(panel, distances(panel.call.rows)), seen

    def finish(self, total, call):
        mass, seen = total
        return mass / seen.clamp(min=1)[..., None]


def distances(rows: Rows) -> int:
    """How many distances there are between these rows and the keys: the farthest, plus 1."""
    low, high = rows.bounds
    last = rows.num_keys - 1
    return max(abs(low), abs(high), abs(last - low), abs(last - high)) + 1


def _by_distance(panel: Panel, size: int) -> Tensor:
    """Weights of a panel summed by distance, (B, H, size)."""
    rows = panel.weights.shape[-2]
    if not isinstance(panel.rows.start, int) or not isinstance(panel.rows.index, slice):
        distance = panel.distance.expand(panel.weights.shape).flatten(2)
        return panel.weights.new_zeros(*panel.weights.shape[:2], size).scatter_add(
            -1, distance, panel.weights.flatten(2)
        )
    total = panel.weights.new_zeros(*panel.weights.shape[:2], size)
    first_row, column = panel.rows.bounds[0], 0
    for span in panel.spans:
        block = panel.weights[..., column : column + len(span)]
        column += len(span)
        # Each row one further to the right than the one below it: then a column holds one offset.
        width = len(span) + rows
        skewed = torch.nn.functional.pad(block.flip(-2), (0, rows)).flatten(-2)[..., : rows * (width - 1)]
        by_offset = skewed.unflatten(-1, (rows, width - 1)).sum(-2)
        offsets = torch.arange(width - 1, device=block.device) - (rows - 1) + span.start - first_row
        total = total.index_add(-1, offsets.abs(), by_offset)
    return total


@dataclass(frozen=True)
class Pooled(Reduction):
    """A small map of a head, (..., H, rows, cols): queries and keys in equal blocks, in order.

    With more blocks than queries or keys, some hold none and are 0.

    Args:
        rows: Blocks of queries.
        cols: Blocks of keys.
        how: "mass": summed over the keys of a block and averaged over its queries, so that rows keep their sum;
            "max": the largest weight in the block.
        by_value_norm: Multiply each weight by the length of the value row it carries.
    """

    rows: int
    cols: int
    how: Literal["mass", "max"] = "mass"
    by_value_norm: bool = False
    place = "heads"

    def __post_init__(self):
        one_of("Pooled(): how", self.how, ("mass", "max"))
        one_of("Pooled(): by_value_norm", self.by_value_norm, (True, False))
        for name, size in (("rows", self.rows), ("cols", self.cols)):
            at_least_one(f"Pooled(): {name}", size)

    @property
    def merge(self):
        return "max" if self.how == "max" else "sum"

    @property
    def reads_value(self):
        return self.by_value_norm

    def blocks(self, call: Any) -> tuple[Tensor, Tensor]:
        """The block that each query (L,) and each key (S,) lies in."""
        (_, _, L, _), S, device = call.query.shape, call.rows.num_keys, call.query.device
        return torch.arange(L, device=device) * self.rows // max(L, 1), torch.arange(
            S, device=device
        ) * self.cols // S

    def panel(self, panel):
        weights = panel.weights
        if self.by_value_norm:
            weights = weights * panel.value_norms[..., None, :].masked_fill(weights == 0, 0)
        row_blocks, col_blocks = self.blocks(panel.call)
        row_blocks, col_blocks = row_blocks[panel.place[2]], col_blocks[panel.keys]
        if self.how == "mass":
            weights = weights @ membership(col_blocks, self.cols).to(weights.dtype)
            queries = membership(row_blocks, self.rows).to(weights.dtype)
            return queries.mT @ weights, queries.sum(0).expand(*weights.shape[:2], -1)
        by_col = weights.new_zeros(*weights.shape[:3], self.cols)
        by_col = by_col.scatter_reduce(-1, col_blocks.expand(weights.shape), weights, "amax")
        both = weights.new_zeros(*weights.shape[:2], self.rows, self.cols)
        return both.scatter_reduce(-2, row_blocks[:, None].expand(by_col.shape), by_col, "amax")

    def finish(self, total, call):
        if self.how == "max":
            return total
        mass, queries = total
        return mass / queries.clamp(min=1)[..., None]


@dataclass(frozen=True)
class QueryRows(Reduction):
    """Whole rows of chosen queries, (..., H, n, S), in the same pass as everything else.

    Args:
        queries: Indices of the queries, from 0.
    """

    queries: Sequence[int]
    place = "heads"

    def __post_init__(self):
        object.__setattr__(self, "queries", integer_tuple("QueryRows(): queries", self.queries))

    def check(self, num_rows: int) -> Sequence[int]:
        """The queries. Raises IndexError for one that is not there."""
        wrong = [query for query in self.queries if not 0 <= query < num_rows]
        if wrong:
            raise IndexError(f"QueryRows(): query {wrong[0]} is not one of the {num_rows} queries.")
        return self.queries

    def panel(self, panel):
        place, total = panel.place[2], []
        empty = panel.weights.new_zeros(*panel.weights.shape[:2], panel.rows.num_keys)
        for query in self.check(panel.call.query.shape[2]):
            here = place.start <= query < place.stop
            total.append(panel.spread(panel.weights[..., query - place.start, :]) if here else empty)
        return torch.stack(total, 2)
