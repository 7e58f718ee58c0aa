"""Few digits where more are due: under float32 inputs, and in long sums under half-precision inputs."""

from dataclasses import replace

import torch

from heedful.checking.calling import CallFailed, Seen
from heedful.checking.cases import Case
from heedful.checking.exam import Exam
from heedful.checking.rounding import is_rounding
from heedful.checking.search import cast, largest
from heedful.checking.stages import attend

HALVES = (torch.bfloat16, torch.float16)
LENGTHS = (
    (2, 4096),
    (256, 256),
)  # queries and keys: many keys, or as many as causal targets and modules take
LOST = 4.0  # times the error of plain code in the same dtype; its own accumulators are in float32


def few_digits(exam: Exam) -> None:
    """Float32 inputs, and an answer that only half precision inside explains."""
    if not exam.tolerance:
        return
    item = exam.evidence[0]
    right, single = item.predict(exam.best), item.predict(exam.best, torch.float32)
    if right is None or single is None:
        return
    if not is_rounding(exam):
        exam.record.untold.append(
            f"why answers are off by {item.error(right):.1e}: it is more than float32's rounding, and no rounding, "
            "since nearby inputs give the same error"
        )
        return
    usual = (single.output.double() - right.output).abs().max().item()
    exam.record.find(
        "softmax-low-precision",
        f"largest output {largest(right.output):.1e}",
        {"error": item.error(right), "usual": usual},
        smallest="the plain case",
    )


def half_sums(exam: Exam) -> None:
    """Half-precision inputs with so many keys that a sum kept in half precision loses most of its terms."""
    if exam.best.made or exam.tolerance or exam.caller.array != "torch":
        return
    for dtype in HALVES:
        found = long_answer(exam, dtype)
        if found is None:
            continue
        case, seen = found
        call = cast(exam.caller.explain(case, exam.best.reading, seen.form), dtype)
        right, plain = attend(cast(call, torch.float64)).output, attend(call).output.double()
        error, usual = ((x - right).abs().max().item() for x in (seen.output, plain))
        if not error > LOST * usual:
            continue
        name, keys = str(dtype).removeprefix("torch."), case.shape.keys
        exam.record.find(
            "softmax-half-sums",
            f"largest output {largest(right):.1e}",
            {"dtype": name, "keys": keys, "error": error, "usual": usual},
            smallest=f"{name} inputs, {case.shape.queries} queries, {keys} keys, values around 1",
        )
        return


def long_answer(exam: Exam, dtype: torch.dtype) -> tuple[Case, Seen] | None:
    """The longest case that the target takes, with its answer; values around 1, so that losses don't cancel."""
    caller = replace(exam.caller, passing=None)
    for queries, keys in LENGTHS:
        if queries != keys and (caller.same or exam.best.reading.causal is not None):
            continue
        case = caller.base(replace(exam.shape, queries=queries, keys=keys))
        case = case.with_side("value", case.value + 1.0)
        try:
            seen = caller.observe(case, dtype)
        except CallFailed:
            continue
        return (case, seen) if seen.output.isfinite().all() else None
    return None
