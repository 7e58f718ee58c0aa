"""Where a head's weight goes: shares that add up to all of it. Nothing of size L x S is built."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from heedful.heads import NEAR
from heedful.reductions import Panel, Reduction

# Every pair of a query and a key has one place, the first of these that fits.
PLACES: tuple[str, ...] = ("self", "first", "previous", "next", "special", "same", "near", "far")


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


@dataclass(frozen=True)
class Visible(Reduction):
    """How many keys each query may see, (..., H, L)."""

    def panel(self, panel: Panel) -> Tensor:
        """The numbers of one panel, (B, H, rows)."""
        return torch.count_nonzero(panel.visible, -1).to(panel.weights)
