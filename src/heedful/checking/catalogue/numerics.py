"""Right on ordinary inputs, and then not: precision, memory, batches, gradients."""

import torch
from torch import Tensor

from heedful.checking.catalogue.entry import Family
from heedful.checking.stages import score, split

family = Family(
    "numerics",
    "Numerics and manners",
    "A function of tensors should leave its inputs alone, take any strides, treat samples one by one, answer in "
    "the dtype it was asked in, give the same answer twice, and have the gradient of what it computes.",
)


@family.mistake(
    "inputs-changed",
    summary="the call changes its inputs in place",
    stage="score",
    says="the call changes its {which} in place",
    remedy="query = query * scale, not query *= scale",
    source="in-place operators on arguments; autograd's version counter exists for this",
    shows="any input, compared before and after",
    hazard=True,
)
def inputs_changed(query: Tensor, key: Tensor) -> Tensor:
    """`query *= scale` writes into the caller's tensor. A second call then scales it again."""
    query *= 1.5
    return (query / 1.5) @ key.mT


@family.mistake(
    "needs-contiguous",
    summary="inputs with other strides raise, or change the answer",
    stage="score",
    says="inputs with other strides {outcome}",
    remedy="reshape instead of view; or .contiguous() where memory order matters",
    source="pytorch/pytorch#133671 and kernels that assume a layout",
    shows="a transposed view with the same numbers",
    hazard=True,
)
def needs_contiguous(query: Tensor, key: Tensor) -> Tensor:
    """After a transpose, `view` raises, and pointer arithmetic reads other elements."""
    return query.view(query.numel()).view(query.shape) @ key.mT


@family.mistake(
    "batch-of-one",
    summary="a sample alone, or a query alone, gets another answer",
    stage="split",
    says="the same sample gives another answer {where}: {outcome}",
    remedy="never squeeze() without naming the axis; mix nothing across the batch",
    source="llamafile#975, TabPFN#800 (results that depend on the batch)",
    shows="one sample alone, and the same sample in a batch",
    hazard=True,
)
def batch_of_one(x: Tensor, heads: int) -> Tensor:
    """`squeeze()` drops every axis of size 1, the batch too when it holds one sample."""
    return split(x, heads).squeeze()


@family.mistake(
    "dtype-changed",
    summary="the output has another dtype than the inputs",
    stage="mix",
    says="{given} inputs give {returned} output",
    remedy="compute in float32 inside, and cast back: output.to(query.dtype)",
    source="the casts around softmax in huggingface/transformers' eager functions",
    shows="inputs in another dtype",
    hazard=True,
)
def dtype_changed(weights: Tensor, value: Tensor) -> Tensor:
    """A float32 softmax or mask promotes everything after it."""
    return weights.float() @ value.float()


@family.mistake(
    "not-repeatable",
    summary="two equal calls differ",
    stage="score",
    says="two equal calls differ by up to {difference:.1e}{held}",
    remedy="take randomness only in training mode, from torch's generator; initialize memory before reading it",
    source="pytorch/pytorch#124464 (dropout on without being asked)",
    shows="any input, called twice",
    searched=False,
)
def not_repeatable(query: Tensor, key: Tensor) -> Tensor:
    """Noise, uninitialized memory, or state that is kept between calls."""
    return score(query, key) + 0.1 * torch.randn(query.shape[:-1] + key.shape[-2:-1], dtype=query.dtype)


@family.mistake(
    "gradient-missing",
    summary="no gradient reaches an input",
    stage="score",
    says="no gradient reaches the {which}",
    remedy="don't use .detach(), .data, .item(), numpy or torch.no_grad() on the way",
    source="pytorch/pytorch PR#188302 (a gradient wanted and missing)",
    shows="any backward pass",
    searched=False,
)
def gradient_missing(query: Tensor, key: Tensor) -> Tensor:
    """The output is right, and nothing learns."""
    return score(query.detach(), key.detach())


def half_gradient(x: Tensor) -> Tensor:
    """The value of x with half its gradient."""
    return 0.5 * x + 0.5 * x.detach()


@family.mistake(
    "gradient-wrong",
    summary="the gradient does not belong to the output",
    stage="score",
    says="the gradient of {which} is off by {difference:.1e}: it does not belong to the output",
    remedy="check a hand-written backward with torch.autograd.gradcheck in float64",
    source="pytorch/pytorch#133671, #133458 (backward passes that differ)",
    shows="any backward pass",
    searched=False,
)
def gradient_wrong(query: Tensor, key: Tensor) -> Tensor:
    """A hand-written backward forgot the scale, or the softmax's correction term."""
    return score(half_gradient(query), half_gradient(key))
