"""Which keys of a cache can go? Heavy hitters: those that have received most, per key head, step by step.

A decoder with grouped heads reads 256 tokens one at a time. `Received(per="kv_head")` comes out of the same pass as the
output. With room for 64 keys, the ones that received most so far are compared with the 64 newest: how much of the next
query's weight do they hold, and how far off is the output without the rest? (Zhang et al., "H2O", 2023.)

Prints:

    keys kept          weight held   output off by
    64 newest                 0.38            1.25
    64 heavy hitters          0.73            0.37
"""

import torch

from heedful import Received, masks, scaled_dot_product_attention

torch.manual_seed(0)
HEADS, KV_HEADS, TOKENS, ROOM, DIM = 8, 2, 256, 64, 32

# A text in which every key head has 40 tokens that are looked up again and again.
query = torch.randn(1, HEADS, TOKENS + 1, DIM)
key, value = torch.randn(2, 1, KV_HEADS, TOKENS + 1, DIM)
topic = torch.randn(KV_HEADS, DIM)
for group in range(KV_HEADS):
    key[0, group, torch.randperm(TOKENS)[:40]] += 1.2 * topic[group]
    query[0, group * 4 : group * 4 + 4] += 0.7 * topic[group]

received = torch.zeros(1, KV_HEADS, TOKENS)
for step in range(TOKENS):
    seen = slice(0, step + 1)
    _, weights = scaled_dot_product_attention(
        query[:, :, step : step + 1],
        key[:, :, seen],
        value[:, :, seen],
        masks.causal(),
        reduce=Received(per="kv_head"),
    )
    received[..., seen] += weights.received(per="kv_head")

newest = torch.arange(TOKENS - ROOM, TOKENS).expand(1, KV_HEADS, ROOM)
heavy = received.topk(ROOM).indices
following = query[:, :, -1:]
output, weights = scaled_dot_product_attention(following, key[:, :, :-1], value[:, :, :-1])

print(f"{'keys kept':<18} {'weight held':>11}   {'output off by':>13}")
for name, kept in (("newest", newest), ("heavy hitters", heavy)):
    row = weights[:, :, 0].unflatten(1, (KV_HEADS, -1))
    held = row.gather(-1, kept[:, :, None].expand(-1, -1, HEADS // KV_HEADS, -1)).sum(-1).mean()
    fewer = [x.gather(2, kept[..., None].expand(-1, -1, -1, DIM)) for x in (key, value)]
    without = scaled_dot_product_attention(following, *fewer).output
    off = (without - output).norm() / output.norm()
    print(f"{f'{ROOM} {name}':<18} {held:>11.2f}   {off:>13.2f}")
