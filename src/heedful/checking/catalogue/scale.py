"""Mistakes in the factor on the dot products."""

import math
from functools import partial

from torch import Tensor

from heedful.checking.catalogue.entry import Family
from heedful.checking.stages import Sizes

family = Family(
    "scale",
    "The scale",
    "Dot products of two vectors with D unit-variance entries have standard deviation sqrt(D). Dividing by "
    "sqrt(D), the size of ONE head, brings them back to 1 before softmax, whatever D is. Any other factor "
    "trains without complaint; the weights are only too flat or too sharp.",
)
DIVIDE = "scores = query @ key.mT / math.sqrt(query.shape[-1]), with the last size of ONE head"


@family.mistake(
    "scale-missing",
    stage="factor",
    says="scores are not scaled; expected division by {root:.2f} = sqrt(head_dim)",
    remedy=DIVIDE,
    source="vit-pytorch#65 (several threads: missing, or by the wrong size)",
    shows="any input with head_dim > 1",
)
def missing(sizes: Sizes) -> float:
    """The dot products go into softmax as they are.

    With a head of 64 they are eight times too large, and softmax picks one key instead of averaging over some.
    """
    return 1.0


@family.mistake(
    "scale-head-dim",
    summary="scores are divided by head_dim instead of its square root",
    stage="factor",
    says="scores are divided by {head_dim:.2f} = head_dim; expected {root:.2f} = sqrt(head_dim)",
    remedy=DIVIDE + "; and scale only once, either the query or the scores",
    source="the post's own 'Gotcha 1' (head of 8, divided by 8.0)",
    shows="any input with head_dim > 1",
    also=("scale applied twice",),
)
def by_head_dim(sizes: Sizes) -> float:
    """The square root was forgotten, or the scale was applied twice: to the query and again to the scores.

    Both are the same function. The weights are too flat, close to a plain average.
    """
    return 1 / sizes.head_dim


@family.mistake(
    "scale-model-dim",
    summary="scores are divided by the root of the model's width, not of one head's",
    stage="factor",
    says="scores are divided by {model_root:.2f} = sqrt(heads * head_dim); expected {root:.2f} = sqrt(head_dim)",
    remedy=DIVIDE,
    source="vit-pytorch#65",
    shows="more than one head",
)
def by_model_dim(sizes: Sizes) -> float:
    """The scale comes from the width of the model instead of the width of one head.

    It happens when the scale is computed before heads are split, or in the constructor from `embed_dim`.
    """
    return (sizes.heads * sizes.head_dim) ** -0.5


@family.mistake(
    "scale-reciprocal",
    summary="scores are multiplied by sqrt(head_dim) instead of divided",
    stage="factor",
    says="scores are multiplied by {root:.2f} = sqrt(head_dim); expected division by it",
    remedy=DIVIDE,
    source="DL4Proteins#12, ng-video-lecture PR#6 (scale missing or by the reciprocal)",
    shows="any input with head_dim > 1",
)
def reciprocal(sizes: Sizes) -> float:
    """`scale = head_dim ** -0.5` and then a division by it, which multiplies."""
    return math.sqrt(sizes.head_dim)


def by_root_of(sizes: Sizes, name: str) -> float:
    """Divide by the square root of the size with this name."""
    return getattr(sizes, name) ** -0.5


@family.mistake(
    "scale-wrong-axis",
    summary="scores are divided by the root of another size",
    says="scores are divided by sqrt({axis}) = {divisor:.2f}; expected {root:.2f} = sqrt(head_dim)",
    remedy=DIVIDE,
    source="set_transformer#18, dfdx#171, ng-video-lecture PR#6 (scale from another size)",
    shows="any input where that size is not head_dim",
)
def wrong_axis() -> list[dict[str, object]]:
    """The scale is read from another axis: the length, the number of heads, the value size, the input's features.

    `key.shape[1]` is the length in (B, S, D), the number of heads in (B, H, S, D). The answer then depends on
    how long the sequence is.
    """
    names = ("keys", "queries", "heads", "value_dim", "features")
    return [{"factor": partial(by_root_of, name=name), "words": {"axis": name}} for name in names]


def weaken(weights: Tensor, keep: Tensor | None, sizes: Sizes) -> Tensor:
    """Divide finished weights by sqrt(head_dim)."""
    return weights / math.sqrt(sizes.head_dim)


@family.mistake(
    "scale-after-softmax",
    summary="the weights, not the scores, are scaled",
    says="the weights, not the scores, are divided by {root:.2f} = sqrt(head_dim): rows sum to {after:.2f}",
    remedy=DIVIDE + ", before softmax",
    source="the formula softmax(Q K^T) / sqrt(d) V with its bracket in the wrong place; see vit-pytorch#65",
    shows="any input with head_dim > 1",
)
def after_softmax() -> list[dict[str, object]]:
    """Softmax of unscaled scores, then divided: rows no longer sum to 1, and the output shrinks."""
    return [{"factor": missing, "finish": weaken}]


@family.mistake(
    "scale-base-two",
    stage="factor",
    says="weights are powers of 2 instead of e: scores are multiplied by ln 2 = 0.69 too much",
    remedy="exp2(scores * log2(e)): fold log2(e) = 1.4427 into the scale when a kernel uses exp2",
    source="pytorch/pytorch#181645 (base-2 against natural logarithm)",
    shows="any input",
)
def base_two(sizes: Sizes) -> float:
    """Kernels use exp2 because it is cheaper, and forget the factor log2(e) that makes it an exp."""
    return math.log(2.0) * sizes.head_dim**-0.5
