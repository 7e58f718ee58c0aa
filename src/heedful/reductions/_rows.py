"""Answers per query: entropy, logsumexp, the largest weights."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._checks import at_least_one, describe, integer_tuple, one_of
from .._rows import Rows
from ._protocol import Reduction, dot_rows


@dataclass(frozen=True)
class LogSumExp(Reduction):
    """Natural log of each row's denominator, the sink included: (..., H, L). -inf where a query sees nothing."""

    def panel(self, panel):
        return panel.logsumexp


@dataclass(frozen=True)
class MaxLogit(Reduction):
    """Largest score before the sink: of each row (..., H, L), or of each head (..., H). -inf where nothing is seen.

    Training monitors clip queries and keys when it grows (flash-attention#1876).

    Args:
        per: "query" or "head".
    """

    per: Literal["query", "head"] = "query"
    merge = "max"

    def __post_init__(self):
        one_of("MaxLogit(): per", self.per, ("query", "head"))

    @property
    def place(self):
        return "rows" if self.per == "query" else "heads"

    def panel(self, panel):
        logits = panel.logits if self.per == "query" else panel.logits.flatten(2)
        if not logits.shape[-1]:
            return logits.new_full(logits.shape[:-1], -torch.inf)
        largest = logits.amax(-1)
        return largest.masked_fill(largest == torch.finfo(largest.dtype).min, -torch.inf)


@dataclass(frozen=True)
class Entropy(Reduction):
    """-sum of p ln p over the keys, in nats: (..., H, L). Uniform over n keys gives ln n, an empty row 0."""

    def panel(self, panel):
        if panel.edited:
            # -p ln p is 0 at 0, but its derivative is not finite there
            return torch.special.entr(panel.weights.masked_fill(panel.weights == 0, 1)).sum(-1)
        logsumexp = panel.logsumexp.masked_fill(panel.logsumexp == -torch.inf, 0)
        if panel.scratch is not None and panel.call.sinks is None and bool((logsumexp.abs() < 16).all()):
            return (logsumexp - dot_rows(panel.weights, panel.logits, panel.scratch)).clamp(min=0)
        # A surprise is how far the largest score lies above this one, and the denominator above the largest. Of large
        # scores the second is lost in rounding, but it is -ln of the largest weight.
        largest, heaviest = panel.logits.detach().amax(-1), panel.weights.detach().amax(-1)
        above = torch.where(heaviest > 0, -heaviest.log(), logsumexp.detach() - largest)
        # One of 1000 belongs to a weight that is 0 in float64 too; with that bound, it and its gradients are finite.
        surprise = torch.sub(largest[..., None], panel.logits, out=panel.scratch)
        if panel.scratch is not None:
            return surprise.add_(above[..., None]).clamp_(max=1000).mul_(panel.weights).sum(-1)
        above = above + (logsumexp - logsumexp.detach())
        return ((surprise + above[..., None]).clamp(max=1000) * panel.weights).sum(-1)


@dataclass(frozen=True)
class Mass(Reduction):
    """Sum of each row: (..., H, L): 1, less a sink's share, 0 for an empty row; after edits, what they left."""

    def panel(self, panel):
        return panel.weights.sum(-1)


class TopKResult(NamedTuple):
    """The largest weights of every row and the keys they belong to, largest first."""

    values: Tensor
    indices: Tensor


@dataclass(frozen=True)
class TopK(Reduction):
    """The k largest weights of each row and their keys: values and indices (..., H, L, k), largest first.

    Where a query sees fewer than k keys, or there are fewer, the rest is 0 and -1. Among equal weights the choice is
    free.
    """

    k: int

    def __post_init__(self):
        at_least_one("TopK(): k", self.k)

    def panel(self, panel):
        order = panel.weights if panel.edited else panel.logits
        # an edit may have written its weights into the scratch memory
        scratch = None if panel.edited else panel.scratch
        indices = largest(order.detach(), min(self.k, order.shape[-1]), scratch)
        values = panel.weights.gather(-1, indices)
        masked = panel.logits.gather(-1, indices) == torch.finfo(values.dtype).min
        keys = panel.keys[indices].masked_fill(masked, -1)
        missing = self.k - indices.shape[-1]
        return pad(values, (0, missing)), pad(keys, (0, missing), value=-1)

    def finish(self, total, call):
        return TopKResult(*total)


def largest(x: Tensor, k: int, scratch: Tensor | None = None) -> Tensor:
    """Indices of the k largest along the last axis, largest first, in any order among equals.

    The k largest lie in the k groups of 8 with the largest maxima, so a long row is searched by its groups first. The
    members of a group stand `groups` apart. `scratch` is memory to work in, of the size of x.
    """
    width = x.shape[-1]
    groups = width // 8
    if groups < 32 * k:
        return x.topk(k, -1).indices
    shape = (*x.shape[:-1], groups)
    room = None if scratch is None else scratch.flatten()[: math.prod(shape)].view(shape)
    maxima = torch.amax(x[..., : 8 * groups].unflatten(-1, (8, groups)), -2, out=room)
    best = maxima.topk(k, -1, sorted=False).indices
    places = (best[..., None] + groups * torch.arange(8, device=x.device)).flatten(-2)
    if width > 8 * groups:
        last = torch.arange(8 * groups, width, device=x.device)
        places = torch.cat([places, last.expand(*best.shape[:-1], -1)], -1)
    candidates = x.gather(-1, places).clamp(min=torch.finfo(x.dtype).min)
    # torch gives topk a second thread above 32,768 numbers, which 512 rows have then: what is added is below all others
    candidates = pad(candidates, (0, max(0, 96 - candidates.shape[-1])), value=-torch.inf)
    return places.gather(-1, candidates.topk(k, -1).indices)


@dataclass(frozen=True)
class MeanDistance(Reduction):
    """Mean distance of what each query looks at, in positions: (..., H, L). 0 where a query sees nothing."""

    def panel(self, panel):
        weights = panel.weights
        if panel.call.sinks is not None and not panel.edited:
            # a sink that takes next to all leaves weights of 0: without it they keep their proportions
            weights = torch.softmax(panel.logits, -1) * panel.visible
        mass = weights.sum(-1)
        total = (weights * panel.distance).sum(-1)
        return torch.where(mass > 0, total / mass.masked_fill(mass == 0, 1), 0)


@dataclass(frozen=True)
class SinkShare(Reduction):
    """What the sink takes of each row, (..., H, L): 1 less the sum of the row before edits; 0 without sinks."""

    def panel(self, panel):
        return panel.logsumexp

    def finish(self, total, call):
        if call.sinks is None:
            return torch.zeros_like(total)
        return (call.sinks.to(total.dtype)[:, None] - total).exp()


@dataclass(frozen=True, eq=False)
class ByKey(Reduction):
    """How much of each row falls on each group of keys: (..., H, L, groups). For words, special tokens, passages.

    Args:
        groups: Group of each key, (S,) or (B, S) integers from 0; a negative key belongs to no group.
    """

    groups: Tensor

    def __post_init__(self):
        groups = self.groups
        if not isinstance(groups, Tensor) or groups.dtype.is_floating_point or groups.dim() not in (1, 2):
            raise ValueError(
                f"ByKey(): groups must be an integer tensor (S,) or (B, S), got {describe(groups)}."
            )

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.groups is other.groups

    def __hash__(self) -> int:
        return hash((type(self), id(self.groups)))

    def columns(self, rows: Rows) -> Tensor:
        """What the weights are multiplied by, (1 or batch, S, groups) bool: which group each key is in."""
        groups = self.groups.to(rows.device)
        if groups.shape[-1] != rows.num_keys:
            raise ValueError(f"ByKey(): groups names {groups.shape[-1]} keys, the call has {rows.num_keys}.")
        if groups.dim() == 2 and len(groups) not in (1, rows.num_items):
            raise ValueError(
                f"ByKey(): groups has {len(groups)} rows, the call has {rows.num_items} batch items. "
                "Give one row per item, or (S,) for all."
            )
        groups = groups[rows.batch] if groups.dim() == 2 and len(groups) > 1 else groups.view(1, -1)
        return membership(groups, int(self.groups.max()) + 1 if self.groups.numel() else 0)

    def panel(self, panel):
        return panel.weights @ self.columns(panel.rows)[:, None, panel.keys].to(panel.weights.dtype)


@dataclass(frozen=True)
class KeyColumns(Reduction):
    """The weights on chosen keys: (..., H, L, n).

    Args:
        keys: Positions of the keys, from 0.
    """

    keys: Sequence[int]

    def __post_init__(self):
        object.__setattr__(self, "keys", integer_tuple("KeyColumns(): keys", self.keys))

    def check(self, num_keys: int) -> list[int]:
        """The keys. Raises IndexError for one that is not there."""
        wrong = [key for key in self.keys if not 0 <= key < num_keys]
        if wrong:
            raise IndexError(f"KeyColumns(): key {wrong[0]} is not one of the {num_keys} keys.")
        return list(self.keys)

    def panel(self, panel):
        return panel.spread(panel.weights)[..., self.check(panel.rows.num_keys)]


@dataclass(frozen=True)
class Full(Reduction):
    """The weights themselves, (..., H, L, S): as large as the matrix. `Weights` uses it for a few rows at a time."""

    remembered = False

    def panel(self, panel):
        return panel.spread(panel.weights)


def membership(bins: Tensor, count: int) -> Tensor:
    """Which bin each key is in, (..., keys, count) bool; negative bins are none."""
    return bins[..., None] == torch.arange(count, device=bins.device)
