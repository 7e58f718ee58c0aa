"""Positions added to the scores: ALiBi's slopes and T5's learned buckets. No table of queries by keys is stored."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heedful._checks import at_least_one
from heedful._rows import Rows


@dataclass(frozen=True)
class Alibi:
    """Adds `-slope * |distance|` to the scores, with a steeper slope for each earlier head.

    Slopes are 2 ** (-8 / n), 2 ** (-16 / n), ... for n heads where n is a power of two. For other numbers of heads the
    slopes of the next lower power come first, then every other slope of the next higher one.

    Args:
        num_heads: Number of query heads, any positive number.

    Raises:
        ValueError: `num_heads` is not positive.

    Cost:
        The kernel adds it where the scores lie. Elsewhere a panel takes time and memory heads * rows * keys.

    Source: Press and others, Train Short, Test Long: Attention with Linear Biases, 2021. There only earlier keys are
    visible; the distance to later ones counts alike.

    Example:
        >>> query, key, value = torch.randn(3, 2, 4, 10, 8)
        >>> alibi = heedful.Alibi(num_heads=4)
        >>> output, weights = heedful.scaled_dot_product_attention(
        ...     query, key, value, heedful.masks.causal(), attn_bias=alibi
        ... )
        >>> mha = heedful.MultiHeadAttention(embed_dim=32, num_heads=4, position=alibi)
    """

    num_heads: int

    tensors: ClassVar[tuple[Tensor, ...]] = ()

    def __post_init__(self) -> None:
        at_least_one("num_heads", self.num_heads)

    def slopes(
        self, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, " heads"]:
        """The slope of each head."""
        lower = 2 ** math.floor(math.log2(self.num_heads))
        first = [2 ** (-8 * head / lower) for head in range(1, lower + 1)]
        more = [2 ** (-4 * head / lower) for head in range(1, 2 * (self.num_heads - lower), 2)]
        return torch.tensor(first + more, dtype=dtype, device=device)

    def bias(self, rows: Rows, keys: range) -> Float[Tensor, "... heads rows keys"]:
        """What to add to the scores of one panel.

        Args:
            rows: The query rows of the panel.
            keys: Its keys.

        Returns:
            A tensor in the dtype of the rows, (heads, rows, keys), with the batch first where items stand at different
            positions.

        Raises:
            ValueError: The call has another number of query heads.

        Cost:
            Time and memory heads * rows * keys.
        """
        _check_heads(self, rows)
        # counted from the first key of the panel: exact in float32 below 2**24, and half the size of integers
        query = (rows.positions - keys.start).to(rows.dtype)
        distance = (query - torch.arange(len(keys), dtype=rows.dtype, device=rows.device)).abs()
        return -self.slopes(rows.device, rows.dtype)[rows.heads, None, None] * distance


class RelativeBias(nn.Module):
    """Adds a learned number per head and bucket of distances to the scores, as T5 does.

    Near distances have a bucket each; farther ones share buckets that widen up to `max_distance`, and everything beyond
    shares the last. T5 also uses `scale=1`.

    Args:
        num_heads: Number of query heads.
        num_buckets: Number of buckets.
        max_distance: From here on all distances share a bucket.
        bidirectional: Whether later keys have buckets of their own, half of them. If not, all later keys share the
            bucket of distance 0, for causal masks.
        device: Where the table is made.
        dtype: Its floating point type.

    Raises:
        ValueError: A number is too small for its place.

    Cost:
        A panel takes time and memory heads * rows * keys.

    Source: Raffel and others, Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, 2019.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check_buckets(num_heads, num_buckets, max_distance, bidirectional)
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table anew, from a normal distribution of deviation 0.02."""
        nn.init.normal_(self.weight, std=0.02)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that gradients must reach."""
        return (self.weight,)

    @property
    def num_heads(self) -> int:
        """Number of query heads."""
        return self.weight.shape[1]

    def buckets(self, distance: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """The bucket of each distance, key position minus query position.

        Args:
            distance: Integers of any shape.

        Returns:
            Integers of the same shape, from 0 to num_buckets - 1.

        Cost:
            Time and memory of the order of `distance`.
        """
        num_buckets = self.weight.shape[0]
        if self.bidirectional:
            num_buckets //= 2
            later = (distance > 0) * num_buckets
            distance = distance.abs()
        else:
            later = 0
            distance = (-distance).clamp(min=0)
        exact = num_buckets // 2
        # In float32, as the models were trained: float64 would move distances that lie on a border.
        growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        shared = (exact + (growth * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
        return later + torch.where(distance < exact, distance, shared)

    def bias(self, rows: Rows, keys: range) -> Float[Tensor, "... heads rows keys"]:
        """What to add to the scores of one panel.

        Args:
            rows: The query rows of the panel.
            keys: Its keys.

        Returns:
            A tensor in the table's dtype, (heads, rows, keys), with the batch first where items stand at different
            positions.

        Raises:
            ValueError: The call has another number of query heads.

        Cost:
            Time and memory heads * rows * keys.
        """
        _check_heads(self, rows)
        farthest = self.max_distance
        distances = torch.arange(-farthest, farthest + 1, device=self.weight.device)
        per_distance = self.weight[self.buckets(distances)][:, rows.heads]
        distance = (rows.key_positions(keys) - rows.positions).clamp(-farthest, farthest)
        bias = nn.functional.embedding(distance + farthest, per_distance).movedim(-1, -3)
        return bias[:, 0] if rows.positions.ndim == 4 else bias

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return (
            f"num_heads={self.num_heads}, num_buckets={self.weight.shape[0]}, max_distance={self.max_distance}, "
            f"bidirectional={self.bidirectional}"
        )


def _check_heads(bias: Alibi | RelativeBias, rows: Rows) -> None:
    if bias.num_heads != rows.num_heads:
        name = type(bias).__name__
        raise ValueError(
            f"attn_bias: {name} is for {bias.num_heads} heads, the query has {rows.num_heads}. "
            f"Write {name}({rows.num_heads})."
        )


def _check_buckets(num_heads: int, num_buckets: int, max_distance: int, bidirectional: bool) -> None:
    sizes = {"num_heads": num_heads, "num_buckets": num_buckets, "max_distance": max_distance}
    for name, size in sizes.items():
        at_least_one(name, size)
    least = 4 if bidirectional else 2
    if num_buckets < least or (bidirectional and num_buckets % 2):
        kind = "even and at least 4 with bidirectional=True" if bidirectional else "at least 2"
        raise ValueError(f"num_buckets must be {kind}, got {num_buckets}.")
    exact = num_buckets // 4 if bidirectional else num_buckets // 2
    if max_distance <= exact:
        raise ValueError(
            f"max_distance must be above {exact}, the distances that have a bucket each; got {max_distance}."
        )
