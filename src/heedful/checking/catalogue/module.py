"""Mistakes around the attention proper: projections, dropout, and the weights that are handed back."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from heedful.checking.catalogue.entry import Family
from heedful.checking.stages import Call, Linear, Sizes, leave, project

family = Family(
    "module",
    "The module",
    "A module projects, attends, merges and projects again. What it forgets on the way, zero-initialized biases "
    "and an identity-like start hide; so its parameters are disturbed before it is checked.",
)


def without_bias(call: Call, sides: tuple[str, ...]) -> Call:
    """The same call with these biases gone."""
    if call.projections is None:
        return call
    projections = {n: Linear(p.weight, None) if n in sides else p for n, p in call.projections.items()}
    return replace(call, projections=projections)


def project_without_bias(call: Call, sides: tuple[str, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Input projections, some without their bias."""
    return project(without_bias(call, sides))


def leave_without_bias(call: Call, context: Tensor, sides: tuple[str, ...]) -> Tensor:
    """The output projection, perhaps without its bias."""
    return leave(without_bias(call, sides), context)


@family.mistake(
    "module-bias-lost",
    summary="the bias of a projection is never added",
    says="the bias of the {sides} projection is never added",
    remedy="F.linear(x, weight, bias), or call the nn.Linear itself",
    source="LoRA-Torch#3, huggingface/peft#761: weights used, the layer never called",
    shows="a bias that isn't 0 (new modules often start with 0)",
)
def bias_lost() -> list[dict[str, object]]:
    """`x @ layer.weight.T` leaves the layer's bias behind.

    A key's bias adds the same to all scores of a row, cancels in softmax, and can't show.
    """
    inputs = ("query", "key", "value")
    choices = [("query",), ("value",), ("output",), inputs, (*inputs, "output")]
    return [
        {
            "project": partial(project_without_bias, sides=sides),
            "leave": partial(leave_without_bias, sides=sides),
            "words": {"sides": " and ".join(sides)},
        }
        for sides in choices
    ]


@family.mistake(
    "module-output-missing",
    stage="leave",
    says="the output projection is never applied, although there is a matrix for it",
    remedy="return self.out_proj(context)",
    source="pytorch/pytorch#32764, huggingface/peft#761 (an output projection that is never called)",
    shows="any input, once the matrix isn't the identity",
)
def output_missing(call: Call, context: Tensor) -> Tensor:
    """Heads stay side by side and can't exchange what they found."""
    return context


@family.mistake(
    "module-output-twice",
    stage="leave",
    says="the output projection is applied twice",
    remedy="return self.out_proj(context), once: in the module or in the block around it",
    source="a projection inside a helper and again around it",
    shows="any input, once the matrix isn't the identity",
)
def output_twice(call: Call, context: Tensor) -> Tensor:
    """Both matrices train, so the loss does not tell."""
    return leave(call, leave(call, context))


def dropped(weights: Tensor, keep: Tensor | None, sizes: Sizes) -> Tensor:
    """Half of the weights become 0, the others double."""
    return torch.nn.functional.dropout(weights, 0.5)


@family.mistake(
    "dropout-in-eval",
    stage="finish",
    says="dropout is active in eval mode: two equal calls differ by up to {difference:.1e}",
    remedy="F.dropout(weights, p, training=self.training); dropout_p=self.p if self.training else 0.0",
    source="pytorch/pytorch#124464, #99293, pytorch-image-models PR#1978, pytorch/torchtune#1791",
    shows="any input, called twice",
    searched=False,
)
def dropout_in_eval(weights: Tensor, keep: Tensor | None, sizes: Sizes) -> Tensor:
    """A function has no training flag: `F.dropout` defaults to on, and `dropout_p` of SDPA is always obeyed."""
    return dropped(weights, keep, sizes)


@family.mistake(
    "dropout-without-rescale",
    stage="finish",
    says="dropout does not rescale: with p = {p:g} the mean output in training is {ratio:.2f} of what it should be",
    remedy="divide what is kept by (1 - p), as F.dropout does",
    source="Srivastava et al., Dropout, JMLR 2014, section 10 (inverted dropout)",
    shows="training mode with dropout, averaged over many calls",
    searched=False,
)
def without_rescale(weights: Tensor, keep: Tensor | None, sizes: Sizes) -> Tensor:
    """The output is smaller in training than in eval, and later layers meet numbers they were not trained on."""
    return weights * (torch.rand_like(weights) >= 0.5)


@family.mistake(
    "dropout-missing",
    summary="dropout is accepted and never applied, in training mode either",
    stage="finish",
    says="dropout p = {p:g} is accepted and never applied, in training mode either",
    remedy="weights = F.dropout(weights, p, training=self.training), before the values are summed",
    source="pytorch/pytorch#100709 and others: an argument that the chosen path ignores",
    shows="training mode with dropout",
    searched=False,
)
def dropout_missing(weights: Tensor, keep: Tensor | None, sizes: Sizes) -> Tensor:
    """The layer is built in the constructor and not called in `forward`."""
    return weights


@family.mistake(
    "weights-averaged",
    summary="the weights are averaged over the heads, against the target's own words",
    stage="report",
    says="the returned weights are averaged over the heads, but {claim} says one matrix per head",
    remedy="return the weights as (B, H, L, S)",
    source="pytorch/pytorch#34537, fairseq#3365",
    shows="two heads or more; only called a mistake when the target says otherwise",
    searched=False,
)
def averaged(weights: Tensor, logits: Tensor) -> Tensor:
    """An average of heads is not a distribution that any head used."""
    return weights.mean(1)


@family.mistake(
    "weights-dropped",
    summary="the weights are the ones after dropout, against the target's own words",
    says="the returned weights are the ones after dropout, but {claim} says they sum to 1",
    remedy="keep the softmax's result under its own name, and return that",
    source="pytorch/pytorch#119811 (hand-written copies that don't reproduce the output)",
    shows="training mode with dropout; only called a mistake when the target says otherwise",
    searched=False,
)
def weights_dropped() -> list[dict[str, object]]:
    """Weights after dropout contain zeros that mean nothing and don't sum to 1."""
    return [{"finish": dropped}]


@family.mistake(
    "weights-are-scores",
    stage="report",
    says="the returned weights are the scores before softmax: rows don't sum to 1",
    remedy="return the softmax's result",
    source="keras-team/keras#20448; in flax and haliax one variable named weights first holds logits",
    shows="any input",
)
def are_scores(weights: Tensor, logits: Tensor) -> Tensor:
    """One variable named `attn` first holds scores and then weights, and is returned too early."""
    return logits


@family.mistake(
    "weights-mismatch",
    stage="report",
    says="the returned weights don't reproduce the output: weights @ value is off by {difference:.1e}",
    remedy="return the very tensor that multiplies the values",
    source="pytorch/pytorch#119811, huggingface/transformers PR#30652 (no causal mask on the path with weights)",
    shows="any input",
    searched=False,
)
def mismatch(weights: Tensor, logits: Tensor) -> Tensor:
    """The weights are computed a second time, on another path: without the mask, the scale or the positions."""
    return weights.flip(-1)
