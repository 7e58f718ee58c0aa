"""A module that may be wrong around the attention and inside it: `wrong_module` around `wrong_attention`."""

import torch
import wrong_attention
import wrong_module
from torch import Tensor


class Block(wrong_module.Base):
    """Projects as `wrong_module` does, and attends as `wrong_attention` does, without dropout."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__(embed_dim, num_heads)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend. In the mask, True means "may attend"."""
        sides = self.projected(query, key, value)
        q, k, v = (torch.stack([self.piece(x, h) for h in range(self.heads(x))], 1) for x in sides)
        context = wrong_attention.compute(set(self.wrong), q, k, v, mask, causal=False)
        return self.finish(self.joined(list(context.unbind(1))))


def make(*wrong: str) -> type[Block]:
    """A class with these mistakes."""
    return type("MultiHead", (Block,), {"wrong": frozenset(wrong)})
