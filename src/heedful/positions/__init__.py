"""Where a token stands: everything that tells attention about order.

One protocol, each method optional. A position is any object that has at least one of

* `embed(x, start)`: `x` of shape (batch, length, embed_dim) with its positions added. `start` is the position of the
  first token: an int, one per batch item, or all position numbers (batch, length).
* `rotate(x, positions)`: queries or keys of shape (..., length, head_dim), turned by their positions.
* `bias(rows, keys)`: what to add to the scores of one panel, broadcastable to (batch, heads, rows, keys).

`tensors` lists the tensors inside that gradients must reach. `MultiHeadAttention(position=...)` calls what is there;
`scaled_dot_product_attention(attn_bias=...)` takes anything with a `bias`.
"""

from heedful.positions.bias import Alibi, RelativeBias
from heedful.positions.ids import position_ids
from heedful.positions.learned import Learned
from heedful.positions.rotary import Rotary
from heedful.positions.scaling import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    ProportionalScaling,
    Scaling,
    YarnScaling,
)
from heedful.positions.sinusoidal import Sinusoidal, Sinusoidal2d, positional_encoding, positional_encoding_2d

__all__ = [
    "Alibi",
    "DynamicNTKScaling",
    "Learned",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "NTKScaling",
    "ProportionalScaling",
    "RelativeBias",
    "Rotary",
    "Scaling",
    "Sinusoidal",
    "Sinusoidal2d",
    "YarnScaling",
    "position_ids",
    "positional_encoding",
    "positional_encoding_2d",
]
