"""Train through a question: attention that copies, and is asked to be sure of itself.

The task is to repeat the first token of a sequence at every place. Two modules learn it; for one, every nat of entropy
has a price. The entropy comes out of the same pass as the output, and its gradient out of the same backward pass;
the matrix is never kept.

Prints:

    both learn to copy: True
    the one that pays looks at fewer tokens: True
"""

import torch

from heedful import Entropy, MultiHeadAttention, Sinusoidal

BATCH, LENGTH, SIZE = 16, 12, 16
SPREAD = 0.3  # of the tokens: less than that of the positions, so that places are easy to tell apart


def train(price: float) -> tuple[float, float]:
    """Error (of a variance of 1) and mean entropy at the end."""
    torch.manual_seed(0)
    attention = MultiHeadAttention(SIZE, num_heads=2, position=Sinusoidal())
    optimizer = torch.optim.AdamW(attention.parameters(), lr=1e-2)
    for _ in range(200):
        x = SPREAD * torch.randn(BATCH, LENGTH, SIZE)
        output, weights = attention(x, reduce=Entropy())
        error = ((output - x[:, :1]) / SPREAD).square().mean()
        entropy = weights.entropy().mean()
        optimizer.zero_grad()
        (error + price * entropy).backward()
        optimizer.step()
    return error.item(), entropy.item()


free_error, free_entropy = train(price=0.0)
paid_error, paid_entropy = train(price=0.1)
print("both learn to copy:", max(free_error, paid_error) < 0.3)
print("the one that pays looks at fewer tokens:", paid_entropy < 0.8 * free_entropy)
