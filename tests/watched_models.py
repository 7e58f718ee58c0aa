"""A small model for the tests of watching: three blocks of causal attention, and one that takes its own softmax."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS = 24, 3


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        parts = self.project(x).chunk(3, -1)
        return tuple(part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.heads(x)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + found.transpose(1, 2).flatten(2)

    def weights(self, x: Tensor) -> Tensor:
        query, key, _ = self.heads(x)
        scores = query.double() @ key.double().mT * (WIDTH // HEADS) ** -0.5
        L = x.shape[1]
        return torch.softmax(scores.masked_fill(~torch.ones(L, L, dtype=torch.bool).tril(), -torch.inf), -1)


class OwnSoftmax(Attention):
    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.heads(x)
        found = torch.softmax(query @ key.mT / 3, -1) @ value
        return x + found.transpose(1, 2).flatten(2)


class Small(nn.Module):
    """`layers.0` to `layers.2`."""

    def __init__(self, *kinds: type[nn.Module]):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(kind() for kind in (kinds or (Attention,) * 3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def weights(self, x: Tensor) -> list[Tensor]:
        """Of each layer, in float64."""
        found = []
        for layer in self.layers:
            found.append(layer.weights(x))
            x = layer(x)
        return found


def text() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 5, WIDTH)
