"""What heads look at on a text, in a word each, and how attention adds up over layers. No matrix is built."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._weights import Weights
from .reductions import Panel, Reduction

NEAR = 5
LEAST_SUPPORT = 3

# Letter and rule of each class. Shares are means over the queries that have such a key to look at.
CLASSES = {
    "previous token": ("P", "0.4 or more on the token before, and clearly more than by chance"),
    "next token": ("N", "0.4 or more on the token after, and clearly more than by chance"),
    "itself": ("U", "0.4 or more on the token itself, and clearly more than by chance"),
    "first token": (
        "S",
        "0.5 or more on the first token of the text, a sink, and clearly more than by chance",
    ),
    "separators": ("T", "0.4 or more on special tokens and punctuation, and clearly more than by chance"),
    "same token": ("D", "0.4 or more on the same token elsewhere, and clearly more than by chance"),
    "induction": (
        "I",
        "0.4 or more on what followed the same token earlier, and clearly more than by chance",
    ),
    "broad": ("B", "an entropy of 0.9 or more of the largest possible"),
    "local": ("L", f"0.6 or more within {NEAR} tokens, and half as much again as by chance"),
    "mixed": ("X", "none of the others"),
}
KINDS = (
    "previous token",
    "next token",
    "itself",
    "first token",
    "separators",
    "same token",
    "induction",
    "local",
)


class HeadClass(NamedTuple):
    """What one head did on this text.

    Attributes:
        label: A key of `CLASSES`.
        letter: One letter for it.
        score: The share of its weight that the class goes by; for "broad" and "mixed" its entropy, as a share of the
            largest possible.
        chance: The same for weights spread evenly over all visible keys; 1 for "broad" and "mixed".
        support: How many queries the score is a mean of.
    """

    label: str
    letter: str
    score: float
    chance: float
    support: int

    @property
    def rule(self) -> str:
        """What makes a head one of this class."""
        return CLASSES[self.label][1]


def classify(
    weights: Weights, tokens: Sequence[Any] | Tensor, *, separators: Sequence[bool] | None = None
) -> list[HeadClass]:
    """Say of each head, in a word, what it looked at on this text. Another text may show something else.

    A kind of key names the head if the mean share of weight on it reaches the threshold of `CLASSES` and three times
    what even weights would give (or half of what is left above that, where three times is too much), over at least
    three queries that have such a key; the largest share wins. If none does, the head is broad, local or mixed.

    Args:
        weights: Self-attention of one text, (H, L, L) or (1, H, L, L), such as `seen.layers[3]` or `weights[0]`.
        tokens: The text's L tokens: their spellings, their ids, or `heedful.models.reading.Token`s.
        separators: Which tokens are special or punctuation. None: found from spellings; none among ids.

    Returns:
        One `HeadClass` per head. A `Token` that is special does not count as a query.

    Raises:
        ValueError: The weights are not square or of several texts, or the sizes do not fit.

    Cost: one pass over the weights in O(L) memory.

    Source: Clark et al., "What Does BERT Look At?" (2019); Olsson et al., "In-context Learning and Induction Heads"
        (2022), for the kinds.
    """
    weights = weights.calls[0] if hasattr(weights, "calls") and len(weights.calls) == 1 else weights
    shape = tuple(weights.shape)
    if len(shape) not in (3, 4) or shape[-1] != shape[-2] or (len(shape) == 4 and shape[0] != 1):
        raise ValueError(
            f"weights must be self-attention of one text, (heads, L, L) or (1, heads, L, L), got {shape}. "
            "Choose one text of a batch with weights[i]."
        )
    question = question_about(tokens, separators=separators)
    for name, given in (("tokens", question.ids), ("separators", question.separators)):
        if len(given) != shape[-1]:
            raise ValueError(f"{name} must have one entry per token, {shape[-1]}, got {len(given)}.")
    ((sums, widths),) = weights.reduce(question)
    return [
        _class_of(*each)
        for each in zip(sums.reshape(-1, 3, len(KINDS)).tolist(), widths.reshape(-1, 2).tolist(), strict=True)
    ]


def question_about(tokens: Sequence[Any] | Tensor, *, separators: Sequence[bool] | None = None) -> "Kinds":
    """What `classify` asks of the weights. Asked for before, in `reduce=` or `watch`, it costs `classify` nothing.

    Args:
        tokens: As in `classify`.
        separators: As in `classify`.
    """
    marks = tuple(map(is_mark, tokens)) if separators is None else tuple(map(bool, separators))
    counted = tuple(not getattr(token, "special", False) for token in tokens)
    return Kinds(_ids(tokens), marks, counted if any(counted) else (True,) * len(counted))


def _class_of(sums: list[list[float]], width: list[float]) -> HeadClass:
    """The class of a head, from sums over queries: shares, shares by chance and support of each kind; entropy."""
    entropy, rows = width[0] / max(width[1], 1), int(width[1])
    kinds = {
        kind: (mass / max(support, 1), even / max(support, 1), int(support))
        for kind, mass, even, support in zip(KINDS, *sums, strict=True)
    }
    local = kinds.pop("local")
    named = {kind: found for kind, found in kinds.items() if stands_out(kind, *found)}
    if named:
        label = max(named, key=lambda kind: named[kind][0])
        return HeadClass(label, CLASSES[label][0], *named[label])
    if rows and entropy >= 0.9:
        return HeadClass("broad", "B", entropy, 1.0, rows)
    if local[0] >= max(0.6, 1.5 * local[1]):
        return HeadClass("local", "L", *local)
    return HeadClass("mixed", "X", entropy, 1.0, rows)


def stands_out(kind: str, share: float, chance: float, support: int) -> bool:
    """Whether a share of weight on a kind of key is enough to name a head by it.

    Args:
        kind: One of `KINDS`, but "local".
        share: Mean weight on such keys, over the queries that have one to look at.
        chance: The same for even weights.
        support: How many such queries there are.
    """
    least = 0.5 if kind == "first token" else 0.4
    return support >= LEAST_SUPPORT and share >= max(least, min(3 * chance, (1 + chance) / 2))


@dataclass(frozen=True)
class Kinds(Reduction):
    """How much weight falls on each kind of key, summed over the queries that have such a key to look at.

    The answer is (..., H, 3, 8), for `KINDS` the sums of weights, of even weights, and of queries; and (..., H, 2), the
    sum of the entropies as shares of the largest possible, and the queries with a choice.

    Args:
        ids: The token ids.
        separators: Which tokens are special or punctuation.
        counted: Which queries count.
    """

    ids: tuple[int, ...]
    separators: tuple[bool, ...]
    counted: tuple[bool, ...]
    place = "heads"

    def panel(self, panel: Panel) -> tuple[Tensor, Tensor]:
        """The sums over one panel."""
        weights, visible = panel.weights, panel.visible
        if visible.shape[1] > 1 and bool((visible == visible[:, :1]).all()):
            visible = visible[:, :1]  # nearly always, and then there is one head to count instead of all
        query = panel.rows.positions
        kinds = self._kinds(query, panel.keys).to(weights)
        counted = torch.tensor(self.counted, device=query.device)[query.squeeze(-1)]
        choices = torch.count_nonzero(visible, -1)
        even = torch.einsum("bhrk,nrk->bhnr", visible.to(weights), kinds) / choices.clamp(min=1)[:, :, None]
        share = torch.einsum("bhrk,nrk->bhnr", weights, kinds)
        supported = ((even > 0) & counted).to(weights).expand_as(share)
        sums = torch.stack([(x * supported).sum(-1) for x in (share, even, torch.ones_like(share))], -2)
        entropy = torch.special.entr(weights).sum(-1) / choices.clamp(min=2).log()
        choosing = ((choices > 1) & counted).to(weights).expand_as(entropy)
        return sums, torch.stack([(entropy * choosing).sum(-1), choosing.sum(-1)], -1)

    def _kinds(self, query: Tensor, key: Tensor) -> Tensor:
        """Which keys (k,) are of which kind for queries (r, 1): (kinds, r, k)."""
        ids = torch.tensor(self.ids, device=key.device)
        marks = torch.tensor(self.separators, device=key.device)
        step, other = key - query, key != query
        followed = (key > 0) & (ids[(key - 1).clamp(min=0)] == ids[query]) & (step < 1)
        kinds = (
            step == -1,
            step == 1,
            step == 0,
            (key == 0) & other,
            marks[key] & other & (key > 0),
            (ids[key] == ids[query]) & other,
            followed & other,
            step.abs() <= NEAR,
        )
        return torch.stack(torch.broadcast_tensors(*kinds))


def _ids(tokens: Sequence[Any] | Tensor) -> tuple[int, ...]:
    """A number for each token, the same for the same token."""
    numbers: dict[Any, int] = {}
    given = [_number(token) for token in tokens]
    return tuple(each if isinstance(each, int) else numbers.setdefault(each, len(numbers)) for each in given)


def _number(token: Any) -> Any:
    return int(token) if isinstance(token, Tensor) else getattr(token, "id", token)


def is_mark(token: Any) -> bool:
    """Whether a token is special, or holds neither letters nor digits. A bare id is no mark."""
    text = getattr(token, "text", token)
    if not isinstance(text, str):
        return False
    return getattr(token, "special", False) or all(unicodedata.category(sign)[0] in "PZC" for sign in text)


def rollout(weights: Sequence[Weights], target: int | Sequence[int] | Tensor) -> Tensor:
    """How much each first token flows into chosen last ones, if attention is followed through all layers.

    A layer's step is (mean over its heads + identity), with rows divided by their sums: half of a token is what it was
    before. Steps are multiplied from the last layer down, starting at the targets, so only vectors are kept.

    Args:
        weights: Self-attention of each layer, first to last, (..., H, L, L).
        target: Indices of tokens in the last layer; negative ones count from the end.

    Returns:
        (..., L) for one target, (..., T, L) for several; every row sums to 1.

    Raises:
        ValueError: There are no layers, or they are not square and alike.
        IndexError: A target is not one of the L tokens.

    Cost: two passes over the weights of each layer in O(L x H x T) memory.

    Source: Abnar and Zuidema, "Quantifying Attention Flow in Transformers" (2020).
    """
    layers = list(weights)
    if not layers or any(tuple(each.shape) != tuple(layers[0].shape) for each in layers):
        raise ValueError(
            f"weights must be layers of one shape, got {[tuple(each.shape) for each in layers]}."
        )
    *leading, H, L, S = layers[0].shape
    if L != S:
        raise ValueError(f"weights must be self-attention, (..., H, L, L), got {tuple(layers[0].shape)}.")
    targets = torch.as_tensor(target, device=layers[0].device)
    wrong = targets[(targets < -L) | (targets >= L)]
    if len(wrong):
        raise IndexError(f"target {int(wrong[0])} is not one of the {L} tokens.")
    chosen = targets.reshape(-1) % L
    flow = torch.zeros(*leading, 1, L, len(chosen), dtype=layers[0].dtype, device=layers[0].device)
    flow[..., chosen, torch.arange(len(chosen), device=flow.device)] = 1
    for layer in reversed(layers):
        rows = 1 + layer.sum(-1).mean(-2)
        flow = flow / rows[..., None, :, None]
        flow = flow + (layer.mT @ flow.expand(*leading, H, L, len(chosen))).mean(-3, keepdim=True)
    flow = flow.squeeze(-3).mT
    return flow if targets.dim() else flow.squeeze(-2)
