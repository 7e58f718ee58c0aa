"""Where a head looks: shares of its weight by place, and one letter. Nothing of size L x S is built."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from heedful.reductions import Panel, Reduction

NEAR = 5

# Every pair of a query and a key has one place, the first of these that fits.
PLACES: tuple[str, ...] = ("self", "first", "previous", "next", "special", "same", "near", "far")

LETTERS = {
    "P": "previous token",
    "N": "next token",
    "S": "first token",
    "T": "special token or punctuation",
    "U": "itself",
    "D": "same token elsewhere",
    "L": f"within {NEAR} tokens",
    "B": "broad",
    "X": "mixed",
}
_LETTER_OF = {"previous": "P", "next": "N", "first": "S", "special": "T", "self": "U", "same": "D"}


@dataclass(frozen=True)
class Places(Reduction):
    """How much of each head's weight falls on each place, added up over the counted queries.

    The answer is (..., H, 2, 8): sums of the weights, and of weights spread evenly over all visible keys.

    Attributes:
        ids: The tokens' numbers in the vocabulary, to find the same token again.
        special: Which tokens are special or punctuation.
        counted: Which queries count.
    """

    ids: tuple[int, ...]
    special: tuple[bool, ...]
    counted: tuple[bool, ...]

    place = "heads"

    def panel(self, panel: Panel) -> Tensor:
        """The sums over one panel, (B, H, 2, 8)."""
        weights, query = panel.weights, panel.rows.positions
        even = panel.visible.to(weights)
        even = even / even.sum(-1, keepdim=True).clamp(min=1)
        counted = torch.tensor(self.counted, device=query.device)[query].to(weights)
        places = one_hot(self._places(query, panel.keys), len(PLACES)).to(weights)
        sums = torch.stack([weights, even], dim=2) * counted
        return sums.flatten(-2) @ places.flatten(0, 1)

    def _places(self, query: Tensor, key: Tensor) -> Tensor:
        """Number in `PLACES` of each pair of queries (r, 1) and keys (k,), (r, k)."""
        ids = torch.tensor(self.ids, device=key.device)
        special = torch.tensor(self.special, device=key.device)
        step = key - query
        fits = torch.broadcast_tensors(
            step == 0,
            key == 0,
            step == -1,
            step == 1,
            special[key],
            ids[key] == ids[query],
            step.abs() <= NEAR,
            torch.ones_like(step, dtype=torch.bool),
        )
        return torch.stack(fits).int().argmax(dim=0)


def letter_of(places: dict[str, float], chance: dict[str, float], entropy: float, same_share: float) -> str:
    """The class of a head, a key of `LETTERS`.

    A place names the head if it holds at least 0.4 of the weight, 0.5 for the first token, and three times what it
    would by chance, or 0.9 where that is less; the largest wins. Else a head is broad from an entropy of 0.9 of the
    largest possible, and local if at least 0.6 of the weight, and one and a half times what it would be by chance,
    lies within `NEAR` tokens.

    Args:
        places: Shares of the head's weight on `PLACES`.
        chance: The same for even weights.
        entropy: Mean entropy as a share of the largest possible.
        same_share: Share on equal tokens, over the queries that have an equal token; 0 where fewer than two have.
    """
    shares = {place: places[place] for place in _LETTER_OF if places[place] >= min(3 * chance[place], 0.9)}
    if "same" in shares:
        shares["same"] = same_share
    shares = {place: share for place, share in shares.items() if share >= (0.5 if place == "first" else 0.4)}
    if shares:
        return _LETTER_OF[max(shares, key=shares.__getitem__)]
    if entropy >= 0.9:
        return "B"
    near = ("self", "previous", "next", "near")
    share, by_chance = (sum(shares[place] for place in near) for shares in (places, chance))
    return "L" if share >= max(0.6, 1.5 * by_chance) else "X"
