"""Answers per key: what each key receives, and what it gives back."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .._checks import one_of
from ._protocol import Reduction


def _sum_of_rows(x: Tensor) -> Tensor:
    """x.sum(-2); of one head in halves, for two threads sum the rows then that each had before, and not the keys."""
    if x.shape[:-2].numel() == 1 and x.shape[-2] and x.shape[-2] % 2 == 0:
        x = x.unflatten(-2, (2, -1)).sum(-2)
    return x.sum(-2)


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
        one_of("Received(): how", self.how, ("sum", "mean", "max"))
        one_of("Received(): per", self.per, ("head", "kv_head"))
        one_of("Received(): by_value_norm", self.by_value_norm, (True, False))

    @property
    def merge(self):
        return "max" if self.how == "max" else "sum"

    @property
    def reads_value(self):
        return self.by_value_norm

    def panel(self, panel):
        # The largest of no weights at all is 0, as their sum is.
        some = panel.weights.shape[-2] > 0
        received = panel.weights.amax(-2) if self.how == "max" and some else _sum_of_rows(panel.weights)
        if self.by_value_norm:
            received = received * panel.value_norms.masked_fill(received == 0, 0)
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
        per_group = total.shape[1] // max(groups, 1)
        if not per_group:
            return total.new_zeros(total.shape[0], groups, *total.shape[2:])
        total = total.unflatten(1, (groups, per_group))
        return total.amax(2) if self.how == "max" else total.sum(2)


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
