"""Take a trained nn.MultiheadAttention over, keep its numbers, and gain its weights.

PyTorch returns weights only averaged over heads or through its slow path. Here they come per head, lazily, and the
output is the same.

Prints:

    same output: True
    same weights: True
    and back again: True
"""

import torch

from heedful import MultiHeadAttention, masks

torch.manual_seed(0)
theirs = torch.nn.MultiheadAttention(64, 4, batch_first=True).eval()
ours = MultiHeadAttention.from_torch(theirs)

x = torch.randn(2, 20, 64)
hidden = torch.arange(20) >= torch.tensor([[20], [15]])  # PyTorch: True is padding

their_output, their_weights = theirs(x, x, x, key_padding_mask=hidden, average_attn_weights=False)
output, weights = ours(x, mask=masks.padding(~hidden))  # heedful: True is a real token
print("same output:", torch.allclose(output, their_output, atol=1e-6))
print("same weights:", torch.allclose(weights.full(), their_weights, atol=1e-6))

returned = ours.to_torch()
print("and back again:", torch.equal(returned.in_proj_weight, theirs.in_proj_weight))
