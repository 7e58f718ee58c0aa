"""What can be said about an attention that no known mistake explains."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from heedful.checking.calling import CallFailed
from heedful.checking.exam import Exam
from heedful.checking.function_calls import Function
from heedful.checking.readings import Reading
from heedful.checking.roles import parameters
from heedful.checking.search import Hypothesis, largest, rows

EXACT = 1e-5  # of the largest value: what float32 may cost
SAME = 1e-3  # of a factor
UNEXPLAINED = 1e-3  # of the variation of scores: what a factor alone leaves
MOVED = 1e-4  # of the largest value


def describe(exam: Exam, readings: Sequence[Reading]) -> None:
    """Write properties that hold, and those that fail, into the record.

    Args:
        exam: The examination; its hypotheses, if any, come close without being right.
        readings: What the target may do by itself.
    """
    exam.progress("nothing known fits; measuring properties")
    add = exam.record.properties.append
    add("no known mistake, and no pair of them, reproduces the answer")
    ratio = constant_ratio(exam, readings)
    if ratio is not None:
        add(f"every output is {ratio:.4g} times the right one")
    elif exam.hypotheses:
        add(near_miss(exam))
    for side in ("query", "key", "value"):
        if not exam.evidence[0].case.same and not depends(exam, side):
            add(f"the {side} changes nothing")
    if leaks_across_batch(exam):
        add("samples change each other's answers")
    if order_matters(exam):
        add("the order of the keys matters")
    weights = recovered(exam)
    if weights is not None:
        describe_weights(exam, weights)


def constant_ratio(exam: Exam, readings: Sequence[Reading]) -> float | None:
    """What every output is multiplied by, when that is all that is wrong."""
    item = exam.evidence[0]
    for reading in readings:
        result = item.predict(Hypothesis(reading))
        if result is None or result.output.shape != item.seen.output.shape:
            continue
        where = rows(result, item.seen.form).expand_as(result.output)
        seen, right = item.seen.output[where], result.output[where]
        ratio = ((seen @ right) / (right @ right)).item() if right.numel() else 0.0
        if ratio and (seen - ratio * right).abs().max().item() <= EXACT * abs(ratio) * largest(right):
            return ratio
    return None


def near_miss(exam: Exam) -> str:
    """That the answer is close to an attention's, and how one knows that rounding is not the reason."""
    item = exam.evidence[0]
    error = item.error(item.predict(exam.best))
    return (
        f"the answer is close to the right one (largest error {error:.1e}, largest output "
        f"{largest(item.seen.output):.1e}), and not by rounding: nearby inputs give the same error"
    )


def answer(exam: Exam, **changed: Tensor) -> Tensor | None:
    """The output with some inputs changed; None when that raises."""
    case = exam.evidence[0].case
    for side, tensor in changed.items():
        case = case.with_side(side, tensor)
    try:
        return exam.caller.observe(case).output
    except CallFailed:
        return None


def moved(exam: Exam, after: Tensor | None) -> bool:
    """Whether an output differs from the first one."""
    before = exam.evidence[0].seen.output
    if after is None or after.shape != before.shape:
        return False
    return (after - before).abs().nan_to_num(torch.inf).max().item() > MOVED * largest(before)


def depends(exam: Exam, side: str) -> bool:
    """Whether the output changes with this input."""
    tensor = getattr(exam.evidence[0].case, side)
    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(9), dtype=tensor.dtype)
    return moved(exam, answer(exam, **{side: tensor + noise}))


def leaks_across_batch(exam: Exam) -> bool:
    """Whether the last sample's value reaches the first sample's output."""
    item = exam.evidence[0]
    value = item.case.value.clone()
    value[-1] += 1.0
    after = answer(exam, value=value)
    if after is None or item.case.shape.batch == 1:
        return False
    return (after[0] - item.seen.output[0]).abs().nan_to_num(torch.inf).max().item() > MOVED * largest(after)


def order_matters(exam: Exam) -> bool:
    """Whether keys and values in another order, moved together, give another output."""
    case = exam.evidence[0].case
    if case.same:
        return False
    return moved(exam, answer(exam, key=case.key.flip(2), value=case.value.flip(2)))


def recovered(exam: Exam) -> Tensor | None:
    """The weights (B, H, L, S), read off by averaging one-hot values; None when values don't enter linearly."""
    if not isinstance(exam.caller, Function) or exam.evidence[0].seen.form != "bhld":
        return None
    shape = exam.shape
    case = exam.caller.base(replace(shape, keys=shape.value_dim, queries=queries_for(exam)))
    once = torch.eye(shape.value_dim, dtype=torch.float64).expand_as(case.value).clone()
    try:
        weights = exam.caller.observe(replace(case, value=once)).output
        twice = exam.caller.observe(replace(case, value=2 * once)).output
    except CallFailed:
        return None
    if not weights.isfinite().all() or (twice - 2 * weights).abs().max() > 1e-3 * largest(weights):
        exam.record.properties.append("the output is not linear in the values")
        return None
    return weights


def queries_for(exam: Exam) -> int:
    """As many queries as keys where the target insists on it."""
    shape = exam.shape
    return shape.value_dim if shape.queries == shape.keys else shape.queries


def describe_weights(exam: Exam, weights: Tensor) -> None:
    """Signs, sums, and the factor on the dot products that fits best."""
    add = exam.record.properties.append
    sums = weights.sum(-1)
    positive = bool((weights > -1e-6).all())
    normal = bool((sums - 1).abs().max() < MOVED)
    if positive and normal:
        add("all weights are positive, and rows sum to 1")
    else:
        sign = "positive" if positive else "negative in places"
        add(f"weights are {sign}; rows sum to {sums.min():.4g} ... {sums.max():.4g}")
    if positive and normal and not (weights < 1e-12).any():
        add(fitted_scale(exam, weights))


def fitted_scale(exam: Exam, weights: Tensor) -> str:
    """The factor on the dot products that fits the logarithms of the weights best, and how well it does."""
    shape = exam.shape
    case = exam.caller.base(replace(shape, keys=shape.value_dim, queries=queries_for(exam)))
    dots, logs = case.query @ case.key.mT, weights.log()
    dots, logs = dots - dots.mean(-1, keepdim=True), logs - logs.mean(-1, keepdim=True)
    slope = ((dots * logs).sum() / (dots * dots).sum()).item()
    total = (logs * logs).sum().item()
    left = ((logs - slope * dots) ** 2).sum().item() / total if total > 1e-12 else 0.0
    expected = shape.head_dim**-0.5
    if left < UNEXPLAINED and abs(slope / expected - 1) > SAME:
        return (
            f"scores are {slope / expected:.3g} times what they should be: {slope:.3f} * q.k, and 1 / sqrt(head_dim) "
            f"is {expected:.3f}{because(exam, slope / expected)}"
        )
    return (
        f"the scores that fit its weights best are {slope:.3f} * q.k (expected {expected:.3f}); "
        f"that leaves {left:.0%} of their variation unexplained"
    )


def because(exam: Exam, ratio: float) -> str:
    """The parameter whose value is this ratio, or 1 divided by it; nothing when there is none."""
    caller = exam.caller
    values = {p.name: p.default for p in parameters(caller.function)} | dict(caller.constants)
    for name, value in values.items():
        if type(value) in (int, float) and any(abs(x - value) < SAME * x for x in (ratio, 1 / ratio)):
            return f"; its parameter {name} is {value:g}, and --set {name}=1 checks it without"
    return ""
