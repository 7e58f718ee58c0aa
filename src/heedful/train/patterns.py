"""What heads look at on one text, measured while the weights pass."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.heads import stands_out
from heedful.reductions import Panel, Reduction


def previous_token(panel: Panel, tokens: Tensor) -> Tensor:
    """The key just before the query."""
    return panel.keys == panel.rows.positions - 1


def first_token(panel: Panel, tokens: Tensor) -> Tensor:
    """The first key of the window, for queries after it."""
    return (panel.keys == 0) & (panel.rows.positions > 0)


def same_token(panel: Panel, tokens: Tensor) -> Tensor:
    """The query's own token elsewhere."""
    query, key = _of(panel, tokens)
    return (query == key) & (panel.keys != panel.rows.positions)


def induction(panel: Panel, tokens: Tensor) -> Tensor:
    """What followed earlier occurrences of the query's token; not the query itself."""
    before = tokens.roll(1, 1).index_fill(1, torch.zeros(1, dtype=torch.int64), -1)
    query, _ = _of(panel, tokens)
    _, key = _of(panel, before)
    return (query == key) & (panel.keys != panel.rows.positions)


PATTERNS: dict[str, Callable[[Panel, Tensor], Tensor]] = {
    "previous token": previous_token,
    "first token": first_token,
    "same token": same_token,
    "induction": induction,
}


class Shares(NamedTuple):
    """Sums over the queries that could follow a pattern, each (B, H, patterns).

    Attributes:
        weight: Weight on the keys of the pattern.
        chance: The same if the weights were even over all visible keys.
        queries: Number of such queries.
    """

    weight: Tensor
    chance: Tensor
    queries: Tensor


@dataclass(frozen=True, eq=False)
class Patterns(Reduction):
    """How much weight falls on each of `PATTERNS`: a `Shares`.

    Args:
        tokens: The ids of the batch, (B, S), which are both queries and keys.
    """

    tokens: Tensor
    place = "heads"

    def panel(self, panel: Panel) -> tuple[Tensor, ...]:
        """Sums over the rows of one panel."""
        visible = panel.visible
        seen = visible.sum(-1).clamp(min=1)
        sums = []
        for pattern in PATTERNS.values():
            hits = pattern(panel, self.tokens) & visible
            count = hits.sum(-1)
            weight = (panel.weights * hits).sum((-2, -1))
            sums.append((weight, (count / seen).sum(-1), (count > 0).sum(-1)))
        return tuple(
            torch.stack([part.to(panel.weights.dtype) for part in parts], -1)
            for parts in zip(*sums, strict=True)
        )

    def finish(self, total: tuple[Tensor, ...], call: object) -> Shares:
        """Name the sums."""
        return Shares(*total)


def _of(panel: Panel, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens of a panel's queries, (B, 1, rows, 1), and of its keys, (B, 1, 1, keys)."""
    chosen = tokens[panel.rows.batch]
    query, key = chosen[:, panel.rows.positions.flatten()], chosen[:, panel.keys]
    return query[:, None, :, None], key[:, None, None, :]


def class_of(shares: Shares) -> tuple[str, dict[str, float]]:
    """The class of one head, "mixed" where no pattern stands out, and its mean weight on each pattern.

    The rule is that of `heedful.heads.classify`, which takes one text; the largest share wins.

    Args:
        shares: Sums of one head, each (patterns,).
    """
    queries = shares.queries.clamp(min=1)
    weights, chances = (shares.weight / queries).tolist(), (shares.chance / queries).tolist()
    found = list(zip(PATTERNS, weights, chances, shares.queries.int().tolist(), strict=True))
    named = [(weight, kind) for kind, weight, *rest in found if stands_out(kind, weight, *rest)]
    return max(named)[1] if named else "mixed", dict(zip(PATTERNS, weights, strict=True))
