"""Train through a question: attention that copies, and is asked to be sure of itself.

The task is to repeat the first token of a sequence at every place. Two modules learn it; one is also punished for
looking at many tokens. Both answers come from the same lazy weights, with no matrix kept for the backward pass.

Prints:

    both learn the task: True
    the punished one looks at fewer tokens: True
"""

import torch

from heedful import Entropy, MultiHeadAttention, Sinusoidal

LENGTH, SIZE = 24, 32


def train(price: float) -> tuple[float, float]:
    """Loss and mean entropy at the end, when each nat of entropy costs `price`."""
    torch.manual_seed(0)
    attention = MultiHeadAttention(SIZE, 4, position=Sinusoidal())
    optimizer = torch.optim.AdamW(attention.parameters(), lr=3e-3)
    for _ in range(300):
        x = torch.randn(16, LENGTH, SIZE)
        output, weights = attention(x, reduce=Entropy())
        task = (output - x[:, :1]).square().mean()
        entropy = weights.entropy().mean()
        optimizer.zero_grad()
        (task + price * entropy).backward()
        optimizer.step()
    return task.item(), entropy.item()


free_loss, free_entropy = train(price=0.0)
sure_loss, sure_entropy = train(price=0.03)
print("both learn the task:", max(free_loss, sure_loss) < 0.3)
print("the punished one looks at fewer tokens:", sure_entropy < 0.8 * free_entropy)
