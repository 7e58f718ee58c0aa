"""Compares the gradients of a target with those of what it computes."""

from dataclasses import replace

import torch
from torch import Tensor

from heedful.checking.calling import CallFailed
from heedful.checking.exam import Exam
from heedful.checking.function_calls import SIDES
from heedful.checking.search import Evidence, Hypothesis, cast, largest, rows
from heedful.checking.stages import RIGHT, attend

CLOSE = 1e-3


def gradients(exam: Exam) -> None:
    """Backward through the target, on the plain case."""
    if exam.caller.array != "torch" or "start" in exam.caller.names:
        return  # a cache kept inside is for decoding, and cuts the graph on purpose
    exam.progress("comparing gradients")
    item, hypothesis = exam.evidence[0], exam.best
    names = list(dict.fromkeys(exam.caller.inputs.values()))
    given = exam.caller.arguments(item.case, torch.float32)
    for name in names:
        given[name].requires_grad_()
    leaves = [given[name] for name in names]
    try:
        found = exam.caller.differentiable(dict(given), item.case)
    except CallFailed as error:
        exam.record.untold.append(f"gradients: {error}")
        return
    direction = torch.randn(found.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    right = right_gradients(item, hypothesis, direction)
    if right is None or not all(x.isfinite().all() for x in (found, *right[0].values())):
        return
    wanted, direction = right
    if not found.requires_grad:
        report_missing(exam, names)
        return
    try:
        got = torch.autograd.grad(found, leaves, direction.to(found.dtype), allow_unused=True)
    except RuntimeError as error:
        exam.record.find(
            "gradient-missing", f"backward raises {error}", {"which": "inputs"}, smallest="any input"
        )
        return
    judge(exam, dict(zip(names, got, strict=True)), exam.caller.gradients(wanted))


def right_gradients(
    item: Evidence, hypothesis: Hypothesis, direction: Tensor
) -> tuple[dict[str, Tensor], Tensor] | None:
    """Gradients of what the target computes, mistakes included, by side of the case; and in which direction.

    What a query that sees nothing gets is the target's own affair: the direction leaves it out.
    """
    stages = RIGHT.with_all(hypothesis.variants)
    if stages is None:
        return None
    leaves = {side: getattr(item.case, side).detach().clone().requires_grad_() for side in SIDES.values()}
    case = replace(item.case, **leaves)
    result = attend(cast(item.explain(case, hypothesis.reading, item.seen.form), torch.float64), stages)
    direction = direction * rows(result, item.seen.form)
    grads = torch.autograd.grad(result.output, list(leaves.values()), direction, allow_unused=True)
    found = zip(leaves.items(), grads, strict=True)
    return {side: torch.zeros_like(leaf) if grad is None else grad for (side, leaf), grad in found}, direction


def judge(exam: Exam, got: dict[str, Tensor | None], wanted: dict[str, Tensor]) -> None:
    """Name the gradients that are missing, and those that are wrong."""
    missing = [s for s in wanted if (got[s] is None or not got[s].any()) and wanted[s].abs().max() > 1e-6]
    if missing:
        report_missing(exam, missing)
        return
    gaps = {}
    for side, gradient in got.items():
        if gradient is None:
            continue
        gap = (gradient.double() - wanted[side]).abs().nan_to_num(torch.inf).max().item()
        if gap > CLOSE * largest(wanted[side]):
            gaps[side] = gap
    if gaps and not exam.tolerance:
        exam.record.find(
            "gradient-wrong",
            "against the gradient of the formula, in float64",
            {"which": " and ".join(gaps), "difference": max(gaps.values())},
            smallest=exam.evidence[0].case.shape.words(),
        )


def report_missing(exam: Exam, sides: list[str]) -> None:
    """No gradient reaches these inputs."""
    exam.record.find(
        "gradient-missing",
        "the formula's gradient there is not 0",
        {"which": " and ".join(sides)},
        smallest=exam.evidence[0].case.shape.words(),
    )
