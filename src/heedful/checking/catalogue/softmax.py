"""Mistakes in the normalization."""

from functools import partial

import torch
from torch import Tensor

from heedful.checking.catalogue.entry import Family

family = Family(
    "softmax",
    "The softmax",
    "Each query's weights are positive and sum to 1 over the keys. The axis of softmax is what decides that, and "
    "every wrong axis gives a tensor of the right shape.",
)
OVER_KEYS = "weights = scores.softmax(dim=-1), with the keys last"


def unnormalized(logits: Tensor) -> Tensor:
    """The scores, used as weights."""
    return logits


def zeroed(logits: Tensor, keep: Tensor) -> Tensor:
    """Blocked scores become 0."""
    return logits.masked_fill(~keep, 0.0)


@family.mistake(
    "softmax-missing",
    says="there is no softmax: the scores themselves weigh the values, and rows don't sum to 1",
    remedy=OVER_KEYS,
    source="the post's 'Gotcha 1: Forgetting Softmax Normalization'",
    shows="any input",
    also=("softmax missing and mask applied after it",),
)
def missing() -> list[dict[str, object]]:
    """Scores can be negative and grow with the number of keys, so the output explodes and gradients with it."""
    return [{"normalize": unnormalized}, {"normalize": unnormalized, "restrict": zeroed}]


@family.mistake(
    "softmax-twice",
    stage="normalize",
    says="softmax is applied twice: the weights are nearly uniform",
    remedy="apply softmax once; a function named ..._weights or ..._probs has already applied it",
    source="keras-team/keras#20448 and the like: scores and weights under one name",
    shows="two keys or more",
)
def twice(logits: Tensor) -> Tensor:
    """The second softmax sees numbers between 0 and 1, so its weights differ at most by a factor e."""
    return logits.softmax(-1).softmax(-1)


@family.mistake(
    "softmax-over-queries",
    stage="normalize",
    says="softmax runs over the queries (dim=-2): columns sum to 1, rows don't",
    remedy=OVER_KEYS,
    source="PyTorch-NLP#2",
    shows="two queries or more",
)
def over_queries(logits: Tensor) -> Tensor:
    """Keys compete for each query no longer; queries compete for each key."""
    return logits.softmax(-2)


@family.mistake(
    "softmax-over-heads",
    stage="normalize",
    says="softmax runs over the heads (dim=1): the heads' weights for one pair sum to 1",
    remedy=OVER_KEYS,
    source="annotated_deep_learning_paper_implementations#146",
    shows="two heads or more; with one head every weight is 1",
)
def over_heads(logits: Tensor) -> Tensor:
    """`dim=1` is right for (B, S) scores, and is the head axis of (B, H, L, S)."""
    return logits.softmax(1)


@family.mistake(
    "softmax-over-batch",
    stage="normalize",
    says="softmax runs over the batch (dim=0): the answer for one sample depends on the others",
    remedy=OVER_KEYS,
    source="annotated_deep_learning_paper_implementations#146 (softmax over the wrong axis)",
    shows="a batch of two or more",
)
def over_batch(logits: Tensor) -> Tensor:
    """`dim=0`, or the old default of `F.softmax` without `dim` for 3-D scores."""
    return logits.softmax(0)


@family.mistake(
    "softmax-over-all",
    stage="normalize",
    says="softmax runs over queries and keys together: the whole matrix sums to 1, not each row",
    remedy=OVER_KEYS,
    source="PyTorch-NLP#2 (softmax over the wrong axes)",
    shows="two queries or more",
)
def over_all(logits: Tensor) -> Tensor:
    """Scores were flattened before softmax, so that all pairs of a head share one total of 1."""
    return logits.flatten(-2).softmax(-1).unflatten(-1, logits.shape[-2:])


@family.mistake(
    "softmax-singleton",
    stage="normalize",
    says="softmax runs over an axis of size 1: every weight is 1, and the output is the sum of all values",
    remedy=OVER_KEYS,
    source="PyTorch-NLP#2",
    shows="two keys or more",
)
def over_singleton(logits: Tensor) -> Tensor:
    """After an `unsqueeze`, `dim=-1` is a new axis with one entry, and the softmax of one number is 1."""
    return logits.unsqueeze(-1).softmax(-1).squeeze(-1)


def in_blocks(logits: Tensor, block: int, lost: str) -> Tensor:
    """Keys come block by block, and what was summed so far is not brought to the larger maximum."""
    keys = logits.shape[-1]
    ends = [min(end, keys) for end in range(block, keys + block, block)]
    firsts = [end - block if lost == "everything" else 0 for end in ends]
    tops = [logits[..., max(first, 0) : end].amax(-1) for first, end in zip(firsts, ends, strict=True)]
    at_the_time = torch.stack(tops, -1).repeat_interleave(block, -1)[..., :keys].clamp(min=-1e30)
    rescaled = (logits - logits.amax(-1, keepdim=True).clamp(min=-1e30)).exp()
    left = (logits - at_the_time).exp()
    total = rescaled if lost == "output" else left
    return (rescaled if lost == "sum" else left) / total.sum(-1, keepdim=True)


@family.mistake(
    "softmax-not-rescaled",
    summary="online softmax: what was summed is not rescaled when the maximum grows",
    says="in blocks of {block} keys, {what}: right only while later scores stay below the first block's",
    remedy="when a block has a larger maximum, multiply running sum and running output by exp(old - new), both",
    source="deepseek-ai/FlashMLA PR#177 (the factor upside down), tile-ai/tilelang PR#1148 (the maximum not carried)",
    shows="more keys than a block holds",
    alone=True,
)
def not_rescaled() -> list[dict[str, object]]:
    """Online softmax, as in flash attention, sums exponentials of scores minus the largest score so far.

    When the largest grows, what was summed before is too large by exp(new - old), the sum and the output alike.
    """
    lost = {
        "sum": "the running sum is not rescaled",
        "output": "the running output is not rescaled",
        "both": "neither running sum nor output is rescaled",
        "everything": "each block subtracts its own maximum",
    }
    return [
        {"normalize": partial(in_blocks, block=block, lost=name), "words": {"block": block, "what": what}}
        for block in (1, 2, 4, 8, 16, 32, 64, 128)
        for name, what in lost.items()
        if (block, name) != (1, "everything")  # that is an average, `operands-query-ignored`
    ]


@family.mistake(
    "softmax-overflow",
    summary="exp is taken without subtracting the row's largest score first",
    stage="normalize",
    says="scores of {score:.0f} overflow: exp is taken without subtracting the row's largest score first",
    remedy="scores - scores.amax(dim=-1, keepdim=True) before exp; torch.softmax does it",
    source="Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv 1805.02867 ('safe softmax')",
    shows="scores above 88 in float32 (11 in float16)",
    hazard=True,
)
def no_subtraction(logits: Tensor) -> Tensor:
    """The exponential of 89 is infinite in float32, and infinity divided by infinity is NaN."""
    weights = logits.exp()
    return weights / weights.sum(-1, keepdim=True)


@family.mistake(
    "softmax-low-precision",
    summary="something inside runs in half precision under float32 inputs",
    stage="score",
    says="float32 inputs give errors of {error:.1e}; plain float32 code gives {usual:.1e}: "
    "something inside runs in half precision",
    remedy="keep scores, softmax and sums in float32 also under half-precision inputs; cast the result only",
    source="the attribute softmax_precision of ONNX's Attention operator exists for this",
    shows="any input, compared with float64",
    hazard=True,
)
def low_precision(query: Tensor, key: Tensor) -> Tensor:
    """Scores are kept in bfloat16: three digits, whatever the inputs."""
    return (query.bfloat16() @ key.bfloat16().mT).to(query.dtype)


@family.mistake(
    "softmax-half-sums",
    summary="long sums are kept in half precision under half-precision inputs",
    stage="normalize",
    says="with {dtype} inputs and {keys} keys errors are {error:.1e}; plain code in {dtype} gives {usual:.1e}: "
    "sums are kept in half precision",
    remedy="keep the running sum of exponentials and the running output in float32; cast the result only",
    source="Dao et al., FlashAttention, arXiv 2205.14135: half-precision inputs, statistics and sums in float32",
    shows="half-precision inputs and hundreds of keys, added one after the other or block by block",
    hazard=True,
    also=("low-precision accumulation",),
)
def half_sums(logits: Tensor) -> Tensor:
    """A bfloat16 number has 8 bits: from 256 on, adding 1 changes nothing.

    Matrix products and `sum` add in float32 whatever they are given; a loop over keys or blocks that keeps its
    sums in the dtype of its inputs does not.
    """
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    total = torch.zeros(weights.shape[:-1], dtype=torch.bfloat16)
    for key in range(weights.shape[-1]):
        total += weights[..., key].to(total.dtype)
    return weights / total[..., None].to(weights.dtype)
