"""Questions to ask of the weights while they pass.

Attention is computed panel by panel, and a panel's weights are gone when the next one comes. A reduction says what one
panel contributes to the answer, and where that belongs:

    place = "rows"    one answer per query: `panel` returns (B, H, rows, ...), set at its rows
    place = "keys"    one answer per key: (B, H, keys, ...), merged at its keys
    place = "heads"   one answer per head: (B, H, ...), merged over all panels

`merge` is "sum" or "max". Gradients follow from that, also for a reduction of your own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from ._rows import Rows

if TYPE_CHECKING:
    from ._call import Call


Edit = Callable[["Panel"], Tensor]


@dataclass(frozen=True, eq=False)
class Panel:
    """Some query rows against all the keys they may see: exact, normalized weights.

    Attributes:
        weights: (B, H, rows, keys), after edits and before dropout.
        logits: (B, H, rows, keys), the scores the weights come from: scaled, capped, biased. A masked pair
            holds the lowest finite number, so that its weight times its logit is 0.
        logsumexp: (B, H, rows), the natural log of the whole denominator.
        rows: Which rows these are.
        spans: The ranges of keys, in order; a panel has the keys of all of them side by side.
        value: (B, G, keys, Ev), the value rows of these keys.
        place: Batch, head and row slices: where the panel lies in the tensors of the call.
        edited: Whether `weights` differ from exp(logits - logsumexp).
    """

    weights: Tensor
    logits: Tensor
    logsumexp: Tensor
    rows: Rows
    spans: tuple[range, ...]
    value: Tensor
    place: tuple[slice, slice, slice]
    edited: bool = False

    def edited_by(self, edits: Sequence[Edit]) -> "Panel":
        """The panel after these edits, in order."""
        panel = self
        for edit in edits:
            weights = edit(panel)
            if (
                not isinstance(weights, Tensor)
                or weights.shape != self.weights.shape
                or weights.dtype != self.weights.dtype
            ):
                shown = (
                    f"{weights.dtype} {tuple(weights.shape)}"
                    if isinstance(weights, Tensor)
                    else type(weights).__name__
                )
                raise ValueError(
                    f"edit must return the weights to use, {self.weights.dtype} {tuple(self.weights.shape)} "
                    f"(batch, heads, rows, keys), got {shown}.".replace("torch.", "")
                )
            panel = replace(panel, weights=weights, edited=True)
        return panel

    @cached_property
    def keys(self) -> Tensor:
        """Positions of the keys, (keys,) int64."""
        return torch.cat([self.rows.key_positions(span) for span in self.spans])

    @property
    def visible(self) -> Tensor:
        """Who may see whom, (B, H, rows, keys) bool."""
        return self.logits > torch.finfo(self.logits.dtype).min

    @property
    def distance(self) -> Tensor:
        """How far a key is from its query, int64, broadcastable to (B, H, rows, keys)."""
        return (self.keys - self.rows.positions).abs()


class Reduction:
    """What one panel contributes to an answer, and how contributions merge.

    Subclasses are frozen dataclasses, so that an answer can be found again by equality.
    """

    place: Literal["rows", "keys", "heads"] = "rows"
    merge: Literal["sum", "max"] = "sum"
    reads_value: bool = False
    remembered: bool = True

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Tensors the reduction closes over and that gradients must reach."""
        return ()

    def panel(self, panel: Panel) -> Tensor | tuple[Tensor, ...]:
        """The contribution of one panel; a tuple for an answer of several tensors."""
        raise NotImplementedError(f"{type(self).__name__} must define panel(panel)")

    def finish(self, total: Any, call: "Call") -> Any:
        """The answer, from the merged contributions of all panels."""
        return total


@dataclass(frozen=True)
class LogSumExp(Reduction):
    """Natural log of each row's denominator, the sink included: (..., H, L). -inf where a query sees nothing."""

    def panel(self, panel):
        return panel.logsumexp


@dataclass(frozen=True)
class MaxLogit(Reduction):
    """Largest score of each row, before the sink: (..., H, L). -inf where a query sees nothing.

    Training monitors clip queries and keys when it grows (flash-attention#1876).
    """

    def panel(self, panel):
        largest = panel.logits.amax(-1)
        return largest.masked_fill(largest == torch.finfo(largest.dtype).min, -torch.inf)


@dataclass(frozen=True)
class Entropy(Reduction):
    """-sum of p ln p over the keys, in nats: (..., H, L). Uniform over n keys gives ln n, an empty row 0."""

    def panel(self, panel):
        if panel.edited:
            return torch.special.entr(panel.weights).sum(-1)
        logsumexp = panel.logsumexp.masked_fill(panel.logsumexp == -torch.inf, 0)
        # A surprise of 1000 belongs to a weight that is 0 in float64 too; the bound keeps 0 * surprise exact.
        surprise = (logsumexp[..., None] - panel.logits).clamp(max=1000)
        return torch.linalg.vecdot(panel.weights, surprise)


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

    Where a query sees fewer than k keys the rest is 0 and -1. Among equal weights the choice is free.
    """

    k: int

    def __post_init__(self):
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise ValueError(f"TopK(): k must be an integer of at least 1, got {self.k!r}.")

    def panel(self, panel):
        order = panel.weights if panel.edited else panel.logits
        indices = largest(order.detach(), min(self.k, order.shape[-1]))
        values = panel.weights.gather(-1, indices)
        masked = panel.logits.gather(-1, indices) == torch.finfo(values.dtype).min
        keys = panel.keys[indices].masked_fill(masked, -1)
        missing = self.k - indices.shape[-1]
        return torch.nn.functional.pad(values, (0, missing)), torch.nn.functional.pad(
            keys, (0, missing), value=-1
        )

    def finish(self, total, call):
        return TopKResult(*total)


def largest(x: Tensor, k: int) -> Tensor:
    """Indices of the k largest along the last axis, largest first, in any order among equals.

    The k largest lie in the k groups of 8 with the largest maxima, so a long row is searched by its groups first.
    """
    width = x.shape[-1]
    groups = width // 8
    if groups < 4 * k:
        return x.topk(k, -1).indices
    best = largest(x[..., : 8 * groups].unflatten(-1, (8, groups)).amax(-2), k)
    candidates = [best + member * groups for member in range(8)]
    candidates += [torch.full_like(best[..., :1], last) for last in range(8 * groups, width)]
    places = torch.cat(candidates, -1)
    return places.gather(-1, x.gather(-1, places).topk(k, -1).indices)


@dataclass(frozen=True)
class Received(Reduction):
    """How much attention each key receives: (..., H, S), or (..., G, S) with per="kv_head".

    Args:
        how: "sum" over the queries (what a cache keeps its heavy hitters by), "max", or "mean" over the queries that
            may see the key.
        per: "head", or "kv_head": the same over the query heads that share a key head.
        by_value_norm: Multiply each weight by the length of the value row it carries.
    """

    how: Literal["sum", "mean", "max"] = "sum"
    per: Literal["head", "kv_head"] = "head"
    by_value_norm: bool = False
    place = "keys"

    def __post_init__(self):
        _one_of("Received", "how", self.how, ("sum", "mean", "max"))
        _one_of("Received", "per", self.per, ("head", "kv_head"))

    @property
    def merge(self):
        return "max" if self.how == "max" else "sum"

    @property
    def reads_value(self):
        return self.by_value_norm

    def panel(self, panel):
        received = panel.weights.amax(-2) if self.how == "max" else panel.weights.sum(-2)
        if self.by_value_norm:
            norm = panel.value.norm(dim=-1)
            norm = norm.repeat_interleave(received.shape[1] // norm.shape[1], 1)
            received = torch.where(received == 0, 0, received * norm)
        if self.how != "mean":
            return received
        return received, panel.visible.sum(-2).to(received.dtype)

    def finish(self, total, call):
        groups = call.key.shape[1]
        if self.how == "max":
            total = total.masked_fill(total == -torch.inf, 0)
        if self.how == "mean":
            received, seen = (self._per_group(part, groups) for part in total)
            return received / seen.clamp(min=1)
        return self._per_group(total, groups)

    def _per_group(self, total: Tensor, groups: int) -> Tensor:
        if self.per == "head":
            return total
        total = total.unflatten(1, (groups, -1))
        return total.amax(2) if self.how == "max" else total.sum(2)


@dataclass(frozen=True)
class MeanDistance(Reduction):
    """Mean distance of what each query looks at, in positions: (..., H, L). 0 where a query sees nothing."""

    def panel(self, panel):
        mass = panel.weights.sum(-1)
        total = (panel.weights * panel.distance).sum(-1)
        return torch.where(mass > 0, total / mass.masked_fill(mass == 0, 1), 0)


@dataclass(frozen=True)
class Full(Reduction):
    """The weights themselves, (..., H, L, S): as large as the matrix. `Weights` uses it for a few rows at a time."""

    remembered = False

    def panel(self, panel):
        return spread(panel.weights, panel.spans, panel.rows.num_keys, dim=-1)


@dataclass(frozen=True, eq=False)
class TransposedProduct(Reduction):
    """weights.mT @ y, (..., H, S, F), for y of (B, H, L, F)."""

    y: Tensor
    place = "keys"
    remembered = False

    @property
    def tensors(self):
        return (self.y,)

    def panel(self, panel):
        return panel.weights.mT @ self.y[panel.place]


def spread(x: Tensor, spans: tuple[range, ...], num_keys: int, dim: int, nothing: float = 0.0) -> Tensor:
    """Widen a dimension of the panel's keys to all keys of the call, with `nothing` where the panel has none."""
    pieces, stop = [], 0
    shape = list(x.shape)
    for span, share in zip(spans, x.split([len(span) for span in spans], dim), strict=True):
        shape[dim] = span.start - stop
        pieces += [x.new_full(shape, nothing), share]
        stop = span.stop
    shape[dim] = num_keys - stop
    pieces = [piece for piece in (*pieces, x.new_full(shape, nothing)) if piece.shape[dim]]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)


def _one_of(function: str, name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(
            f"{function}(): {name} must be one of {', '.join(map(repr, choices))}, got {value!r}."
        )
