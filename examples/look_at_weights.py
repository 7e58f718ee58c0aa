"""Ask the weights without ever having the matrix.

Here every query is made to look for the key ten positions back, so that there is something to find.

Prints:

    the last query looks at key 89 with weight 1.0
    mean distance, per head: ['10', '10']
    entropy, per head: ['0.0', '0.0']
    each key receives about one unit: True
    the strongest link of query 50: key 40
"""

import torch

from heedful import masks, scaled_dot_product_attention

torch.manual_seed(0)
key = torch.randn(1, 2, 100, 64)
query = 10 * key.roll(10, dims=2)
value = torch.randn(1, 2, 100, 64)

_, weights = scaled_dot_product_attention(query, key, value, masks.causal())

row = weights[0, 0, -1]
print(f"the last query looks at key {row.argmax()} with weight {row.max():.1f}")

settled = slice(10, None)  # the first ten queries have no key that far back
print("mean distance, per head:", [f"{x:.0f}" for x in weights.mean_distance()[0, :, settled].mean(-1)])
print("entropy, per head:", [f"{abs(x):.1f}" for x in weights.entropy()[0, :, settled].mean(-1)])

received = weights.received()[0, :, 10:80]
print("each key receives about one unit:", bool(((received > 0.9) & (received < 1.6)).all()))

values, indices = weights.topk(3)
print(f"the strongest link of query 50: key {indices[0, 0, 50, 0]}")
