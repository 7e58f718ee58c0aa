"""Attention that returns its weights: the output, and what it is made of.

Prints:

    output (2, 8, 100, 64), weights (2, 8, 100, 100)
    the output is the weights times the values: True
    it equals PyTorch's own function: True
"""

import torch

from heedful import masks, scaled_dot_product_attention

torch.manual_seed(0)
query, key, value = torch.randn(3, 2, 8, 100, 64)

output, weights = scaled_dot_product_attention(query, key, value, masks.causal())
print(f"output {tuple(output.shape)}, weights {tuple(weights.shape)}")

again = weights @ value
print("the output is the weights times the values:", torch.allclose(output, again, atol=1e-5))

theirs = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
print("it equals PyTorch's own function:", torch.allclose(output, theirs, atol=1e-5))
