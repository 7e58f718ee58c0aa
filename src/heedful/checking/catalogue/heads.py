"""Mistakes in how heads are split, grouped and merged."""

from torch import Tensor

from heedful.checking.catalogue.entry import Family

family = Family(
    "heads",
    "The heads",
    "(B, L, E) becomes (B, H, L, D) by reading E as (H, D) and then exchanging two axes. A reshape alone gives "
    "the same shape with tokens and heads mixed up.",
)
SPLIT = "x.view(B, L, H, D).transpose(1, 2)"
MERGE = "x.transpose(1, 2).reshape(B, L, H * D)"


@family.mistake(
    "heads-split-reshape",
    stage="split",
    says="heads are split by reshape alone: each head gets a mixture of neighboring tokens",
    remedy=SPLIT,
    source="pytorch/pytorch#67651, AEMatter#3 (view where a transpose was needed)",
    shows="two heads and two tokens or more",
)
def split_by_reshape(x: Tensor, heads: int) -> Tensor:
    """`x.view(B, H, L, D)` cuts the memory of a (B, L, E) tensor into the wrong pieces.

    A head then holds L / H tokens with all their features, cut into D-sized chunks that pass for tokens.
    """
    return x.reshape(x.shape[0], heads, x.shape[1], -1)


@family.mistake(
    "heads-merge-reshape",
    stage="merge",
    says="heads are merged without the transpose: each row of the result mixes different tokens of one head",
    remedy=MERGE,
    source="pytorch/pytorch#67651, AEMatter#3 (view where a transpose was needed)",
    shows="two heads and two queries or more",
)
def merge_by_reshape(x: Tensor) -> Tensor:
    """`context.reshape(B, L, E)` straight from (B, H, L, D)."""
    return x.reshape(x.shape[0], x.shape[2], -1)


@family.mistake(
    "heads-groups-tiled",
    stage="spread",
    says="key and value heads are tiled over the query heads (0,1,0,1); expected neighbors in a group (0,0,1,1)",
    remedy="key.repeat_interleave(num_heads // num_kv_heads, dim=1), not key.repeat(1, n, 1, 1)",
    source="jax-js PR#180, onnx PR#7274, apple/axlearn PR#842",
    shows="two key heads or more, and twice as many query heads or more",
)
def tiled(x: Tensor, heads: int) -> Tensor:
    """`repeat` tiles, `repeat_interleave` keeps a group together. Pretrained weights expect the latter."""
    return x.repeat(1, heads // x.shape[1], 1, 1)


def split_sizes_exchanged(x: Tensor, heads: int) -> Tensor:
    """Read E as (D, H) instead of (H, D)."""
    return x.unflatten(-1, (-1, heads)).permute(0, 3, 1, 2)


def merge_sizes_exchanged(x: Tensor) -> Tensor:
    """Write E as (D, H)."""
    return x.permute(0, 2, 3, 1).flatten(2)


@family.mistake(
    "heads-size-exchanged",
    says="the width is read as (head_dim, heads) instead of (heads, head_dim): a head holds every {heads}th feature",
    remedy=SPLIT,
    source="pytorch/pytorch#67651 (axes swapped by view); einops patterns '(d h)' for '(h d)'",
    shows="two heads or more, with separate weights per projection",
)
def sizes_exchanged() -> list[dict[str, object]]:
    """A consistent exchange trains well from scratch, and is wrong for any weights that come from elsewhere."""
    return [
        {"split": split_sizes_exchanged},
        {"split": split_sizes_exchanged, "merge": merge_sizes_exchanged},
    ]


def one_head(x: Tensor, heads: int) -> Tensor:
    """All features in one head."""
    return x.unsqueeze(1)


@family.mistake(
    "heads-not-split",
    says="heads are never split: one head of {width} attends instead of {asked} heads of {narrow}",
    remedy=SPLIT,
    source="set_transformer#18, perceiver-io#9 (scale and heads of the full width)",
    shows="two heads or more",
)
def not_split() -> list[dict[str, object]]:
    """`num_heads` is stored and never used. Shapes fit, since merging one head is a no-op."""
    return [{"split": one_head}]


@family.mistake(
    "heads-first-only",
    stage="spread",
    says="every query head uses key and value head 0",
    remedy="key.repeat_interleave(num_heads // num_kv_heads, dim=1)",
    source="ONNXim PR#34 and onnx PR#7274 (grouped heads assigned wrongly)",
    shows="two key heads or more",
)
def first_only(x: Tensor, heads: int) -> Tensor:
    """Broadcasting from one head is right for multi-query attention only."""
    return x[:, :1].expand(-1, heads, -1, -1)
