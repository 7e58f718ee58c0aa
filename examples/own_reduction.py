"""A question nobody thought of: how much does each head look at its own kind of token?

A reduction says what one panel contributes. It runs in the pass that computes the output, and has a gradient.

Prints:

    same kind, per head: ['0.34', '0.33', '0.34']
    equals the matrix way: True
    gradient reaches the queries: True
"""

from dataclasses import dataclass

import torch

from heedful import Reduction, scaled_dot_product_attention


@dataclass(frozen=True, eq=False)
class SameKind(Reduction):
    """Share of each head's weight that lies between tokens of one kind, (..., H)."""

    kinds: torch.Tensor
    place = "heads"

    def panel(self, panel):
        same = self.kinds[panel.rows.positions] == self.kinds[panel.keys]
        return (panel.weights * same).sum((-1, -2))


torch.manual_seed(0)
query, key, value = torch.randn(3, 2, 3, 60, 16)
query.requires_grad_()
kinds = torch.randint(3, (60,))
question = SameKind(kinds)

output, weights = scaled_dot_product_attention(query, key, value, reduce=question)
(answer,) = weights.reduce(question)
print("same kind, per head:", [f"{x:.2f}" for x in answer.mean(0) / 60])

same = kinds[:, None] == kinds
by_matrix = (weights.full() * same).sum((-1, -2))
print("equals the matrix way:", torch.allclose(answer, by_matrix, rtol=1e-5))

(gradient,) = torch.autograd.grad(answer.sum(), query)
print("gradient reaches the queries:", bool(gradient.any()))
