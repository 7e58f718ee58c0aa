"""The inputs a target is run on: small, with all sizes different, so that no two axes can be taken for each other."""

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    """Sizes of one call. With four keys more than queries, no causal mask moved by one is that of the other end."""

    batch: int = 2
    heads: int = 3
    kv_heads: int = 3
    queries: int = 5
    keys: int = 9
    head_dim: int = 8
    value_dim: int = 6

    def words(self) -> str:
        """The sizes, as the report writes them."""
        return (
            f"batch {self.batch}, heads {self.heads}, queries {self.queries}, keys {self.keys}, "
            f"head_dim {self.head_dim}"
        )


CROSS = Shape()
EQUAL_WIDTHS = Shape(value_dim=8)
EQUAL_LENGTHS = Shape(queries=5, keys=5, value_dim=8)
SQUARE = Shape(batch=3, queries=5, keys=5, value_dim=8)
NUDGE = 0.05  # several neighbors on the grid of bfloat16 farther
SUITES = (CROSS, EQUAL_WIDTHS, EQUAL_LENGTHS, SQUARE)


@dataclass(frozen=True, eq=False)
class Case:
    """One input, float64, in the order (batch, heads, length, size).

    Attributes:
        name: Short name for reports.
        mask: What is handed over as the mask, before anybody says what True means: bool, broadcasts to
            (B, H, L, S). Each row and each column has both values.
        padding: The same over keys, (B, S).
        bias: Finite numbers to add to the scores, broadcasts to (B, H, L, S).
        causal: Whether the target is asked to be causal.
    """

    name: str
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None = None
    padding: Tensor | None = None
    bias: Tensor | None = None
    causal: bool = False

    @property
    def same(self) -> bool:
        """Whether query, key and value are one tensor: self-attention on one input."""
        return self.query is self.key and self.key is self.value

    def with_side(self, side: str, tensor: Tensor) -> "Case":
        """The case with another query, key or value, and with what is the same tensor."""
        sides = [each for each in ("query", "key", "value") if getattr(self, each) is getattr(self, side)]
        return replace(self, **dict.fromkeys(sides, tensor))

    @property
    def shape(self) -> Shape:
        """The sizes of this case."""
        batch, heads, queries, head_dim = self.query.shape
        return Shape(
            batch, heads, self.key.shape[1], queries, self.key.shape[2], head_dim, self.value.shape[-1]
        )


@cache
def plain(shape: Shape, name: str = "plain", seed: int = 0) -> Case:
    """Queries, keys and values with entries of unit variance, and nothing else."""
    random = torch.Generator().manual_seed(seed)

    def normal(heads: int, length: int, size: int) -> Tensor:
        return torch.randn(shape.batch, heads, length, size, generator=random, dtype=torch.float64)

    query = normal(shape.heads, shape.queries, shape.head_dim)
    key = normal(shape.kv_heads, shape.keys, shape.head_dim)
    return Case(name, query, key, normal(shape.kv_heads, shape.keys, shape.value_dim))


@cache
def inputs(batch: int, queries: int, keys: int, widths: tuple[int, int, int], same: bool = False) -> Case:
    """Inputs of a module, as one head: (B, 1, L, E). With `same`, query, key and value are one tensor."""
    case = plain(Shape(batch, 1, 1, queries, keys, widths[0], widths[2]))
    if same:
        return replace(case, key=case.query, value=case.query)
    random = torch.Generator().manual_seed(5)
    key = torch.randn(batch, 1, keys, widths[1], generator=random, dtype=torch.float64)
    return replace(case, key=key)


def nudged(case: Case, seed: int) -> Case:
    """The case with every number of query, key and value moved by a few percent; what was one tensor stays one."""
    random = torch.Generator().manual_seed(1000 + seed)
    moved: dict[int, Tensor] = {}
    for x in (case.query, case.key, case.value):
        if id(x) not in moved:
            moved[id(x)] = x * (1 + NUDGE * torch.randn(x.shape, generator=random, dtype=x.dtype))
    return replace(case, query=moved[id(case.query)], key=moved[id(case.key)], value=moved[id(case.value)])


@cache
def with_mask(case: Case, per_sample: bool, heads: int = 1) -> Case:
    """Add a mask that differs between samples, if it may, and between so many heads."""
    shape = case.shape
    batch = shape.batch if per_sample else 1
    b, h, i, j = torch.meshgrid(
        *(torch.arange(n) for n in (batch, heads, shape.queries, shape.keys)), indexing="ij"
    )
    # Blocks two of every five neighbors along a row and along a column, others in the next sample and head.
    mask = (2 * i + j + 2 * b + h) % 5 < 3
    return replace(case, name="mask", mask=mask)


@cache
def with_padding(case: Case) -> Case:
    """Block the last keys: one more for each sample, at least one and never all."""
    shape = case.shape
    lengths = shape.keys - 1 - torch.arange(shape.batch) % (shape.keys - 1)
    return replace(case, name="padding", padding=torch.arange(shape.keys) < lengths[:, None])


@cache
def with_bias(case: Case) -> Case:
    """Add finite numbers for the scores, the same for all samples and heads."""
    random = torch.Generator().manual_seed(7)
    size = (1, 1, case.shape.queries, case.shape.keys)
    return replace(case, name="bias", bias=torch.randn(size, generator=random, dtype=torch.float64))


@cache
def with_causal(case: Case) -> Case:
    """Ask for causality."""
    return replace(case, name="causal", causal=True)
