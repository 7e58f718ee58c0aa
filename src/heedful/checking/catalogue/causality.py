"""Mistakes in who may see the future."""

from functools import partial

import torch
from torch import Tensor

from heedful.checking.catalogue.entry import Family
from heedful.checking.stages import Sizes, causal

family = Family(
    "causal",
    "Causality",
    "With a causal mask a query sees the keys up to and including its own position. When there are more keys than "
    "queries one must also say where the queries stand: at the start (torch's is_causal) or at the end (what "
    "decoding with a cache needs).",
)
TRIL = "torch.ones(L, S, dtype=torch.bool).tril(S - L) keeps the past and the present, last query at the last key"


@family.mistake(
    "causal-strict",
    stage="causal",
    says="a query may not see its own position: the diagonal is blocked, and the first query sees nothing",
    remedy=TRIL + "; with triu, torch.triu(ones, diagonal=1) is what to block",
    source="the diagonal of torch.tril and torch.triu; mask mix-ups as in LLMs-from-scratch#1061",
    shows="any causal input",
)
def strict(sizes: Sizes, align: str) -> Tensor:
    """`triu(diagonal=0)` blocks the diagonal as well."""
    return shifted(sizes, align, -1)


def shifted(sizes: Sizes, align: str, by: int) -> Tensor:
    """A causal mask whose diagonal is moved."""
    offset = sizes.keys - sizes.queries if align == "end" else 0
    return torch.ones(sizes.queries, sizes.keys, dtype=torch.bool).tril(offset + by)


@family.mistake(
    "causal-off-by-one",
    stage="causal",
    says="a query sees one position of the future: each token sees the one it should predict",
    remedy=TRIL,
    source="off-by-one positions with a cache: flash-linear-attention#766",
    shows="any causal input; the loss falls to almost nothing in training",
)
def off_by_one(sizes: Sizes, align: str) -> Tensor:
    """`tril(diagonal=1)`, or `<=` where `<` was meant."""
    return shifted(sizes, align, 1)


@family.mistake(
    "causal-wrong-end",
    summary="the causal mask is aligned to the other end than the target says",
    says="the causal mask is aligned to the {actual}, but {claim} says the {claimed}",
    remedy="tril(S - L) aligns the last query to the last key; tril(0) aligns the first query to the first key",
    source="ONNX's Attention and flash-attn 2.1 (end) against torch's is_causal (start)",
    shows="fewer queries than keys; only called a mistake when the target itself says which end",
    searched=False,
)
def wrong_end() -> list[dict[str, object]]:
    """With one new query and a cache of ten keys, alignment to the start shows the query only the first key."""
    return [{"causal": lambda sizes, align: causal(sizes, "start" if align == "end" else "end")}]


@family.mistake(
    "causal-inverted",
    stage="causal",
    says="the causal mask is inverted: queries see the future and not the past",
    remedy=TRIL + "; check whether True means keep or block where the mask is used",
    source="LLMs-from-scratch#1061 (an upper triangle given to SDPA, where True means keep)",
    shows="any causal input",
)
def inverted(sizes: Sizes, align: str) -> Tensor:
    """An upper-triangular block mask, handed to a function for which True means "may attend"."""
    return ~causal(sizes, align)


@family.mistake(
    "causal-inverted-with-self",
    stage="causal",
    says="the causal mask is upside down: queries see themselves and the future, not the past",
    remedy=TRIL,
    source="LLMs-from-scratch#1061",
    shows="any causal input",
)
def inverted_with_self(sizes: Sizes, align: str) -> Tensor:
    """`triu` where `tril` was meant."""
    return ~strict(sizes, align)


@family.mistake(
    "causal-ignored",
    summary="causality is promised, and every query sees the future",
    stage="causal",
    says="{who} promises causality, and every query sees the future",
    remedy=TRIL,
    source="pytorch/pytorch#99282 (the causal flag is ignored), huggingface/transformers#48769",
    shows="any causal input",
)
def ignored(sizes: Sizes, align: str) -> Tensor:
    """The flag is accepted and dropped, or the mask is built and never used."""
    return torch.ones(sizes.queries, sizes.keys, dtype=torch.bool)


def leaking(sizes: Sizes, align: str, size: int, which: str) -> Tensor:
    """Causal, but inside square blocks of this size on the diagonal everything is visible."""
    keep = causal(sizes, align)
    offset = sizes.keys - sizes.queries if align == "end" else 0
    query_block = (torch.arange(sizes.queries)[:, None] + offset) // size
    same = query_block == torch.arange(sizes.keys) // size
    last = (sizes.queries - 1 + offset) // size
    if which == "last":
        same &= query_block == last
    elif which == "first":
        same &= query_block == 0
    return keep | same


@family.mistake(
    "causal-block-leak",
    summary="future keys of the same block are visible",
    says="future keys of the same block of {size} are visible ({which} block)",
    remedy="apply the mask inside the blocks that the diagonal crosses, too",
    source="pytorch/pytorch#134756, attention-gym#149 (block masks reused or built for other lengths)",
    shows="more than one query in a block",
)
def block_leak() -> list[dict[str, object]]:
    """Blocked kernels skip whole blocks above the diagonal, and must mask elementwise those it crosses."""
    return [
        {"causal": partial(leaking, size=size, which=which), "words": {"size": size, "which": which}}
        for size in (2, 3, 4, 8, 16, 32, 64)
        for which in ("every", "last", "first")
    ]
