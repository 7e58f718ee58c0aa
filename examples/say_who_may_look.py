"""Masks are rules that combine. Nothing of size queries x keys is stored.

Two documents are packed into one sequence; each token sees three tokens back, and the first of its document.

Prints:

    ■ · · · · · · · · ·
    ■ ■ · · · · · · · ·
    ■ ■ ■ · · · · · · ·
    ■ ■ ■ ■ · · · · · ·
    ■ · ■ ■ ■ · · · · ·
    · · · · · ■ · · · ·
    · · · · · ■ ■ · · ·
    · · · · · ■ ■ ■ · ·
    · · · · · ■ ■ ■ ■ ·
    · · · · · ■ · ■ ■ ■
    a token of the second document gives the first one: 0.0
"""

import torch

from heedful import masks, scaled_dot_product_attention

ids = torch.tensor([0] * 5 + [1] * 5)
starts = torch.tensor([1, 0, 0, 0, 0] * 2, dtype=torch.bool)
mask = masks.documents(ids) & masks.causal() & (masks.window(3) | masks.padding(starts[None]))

for row in mask.to_dense(10, 10)[0, 0]:
    print(" ".join("■" if seen else "·" for seen in row))

torch.manual_seed(0)
x = torch.randn(1, 2, 10, 16)
_, weights = scaled_dot_product_attention(x, x, x, mask)
print(f"a token of the second document gives the first one: {weights[..., 5:, :5].sum():.1f}")
