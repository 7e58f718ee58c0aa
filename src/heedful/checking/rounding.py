"""Tells rounding from a systematic error: rounding changes at random when the inputs move by a few percent."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from heedful.checking.calling import CallFailed
from heedful.checking.cases import nudged
from heedful.checking.catalogue import Variant, find
from heedful.checking.exam import Exam
from heedful.checking.search import Hypothesis, Made, largest, rows
from heedful.checking.stages import Call, Sizes, position_bias, rotate

DRAWS = 12
LEAST = 0.5  # of the error's mean square: a larger share that stays the same is not rounding
SMALL = 2e-4  # of the largest value: a systematic error below this is mentioned, and not called wrong


def is_rounding(exam: Exam) -> bool:
    """Whether the best hypothesis is off by rounding.

    A factor of 1.01, or a constant in a denominator, gives nearby inputs the same error. Few digits do not: each
    number that is rounded, parameters of a module too, falls elsewhere between two neighbors of the coarse grid.
    Tables are rounded once and for all, and are tried.
    """
    return any(
        scattered(exam, h) or (h is not exam.best and exam.evidence[0].holds(h))
        for h in (exam.best, *with_coarse_tables(exam.best))
    )


def with_coarse_tables(hypothesis: Hypothesis) -> Iterator[Hypothesis]:
    """The hypothesis with tables that are kept in half precision: of a rotation, and of ALiBi."""
    entry = find("softmax-low-precision")
    for kept in (torch.bfloat16, torch.float16):
        if hypothesis.reading.rotary is not None:
            coarse = Variant({"rotate": partial(rotate, kept=kept)}, {})
            yield hypothesis.plus([Made(entry, coarse)])
        if hypothesis.reading.alibi is not None:
            coarse = Variant({"position_bias": partial(coarse_bias, kept=kept)}, {})
            yield hypothesis.plus([Made(entry, coarse)])


def coarse_bias(sizes: Sizes, call: Call, kept: torch.dtype) -> Tensor | None:
    """ALiBi with few digits."""
    exact = position_bias(sizes, call)
    return None if exact is None else exact.to(kept)


def scattered(exam: Exam, hypothesis: Hypothesis) -> bool:
    """Whether the errors that a hypothesis leaves on nearby inputs have nothing in common."""
    errors = [error_nearby(exam, hypothesis, seed) for seed in range(DRAWS)]
    known = [e for e in errors if e is not None]
    if len(known) < DRAWS:
        return False
    found = torch.stack(known)
    return bool(found.mean(0).square().sum() < LEAST * found.square().mean(0).sum())


def error_nearby(exam: Exam, hypothesis: Hypothesis, seed: int) -> Tensor | None:
    """What was seen minus what is predicted, on inputs close to the plain ones; None when there is no answer.

    Queries that see nothing don't count.
    """
    try:
        item = exam.look(nudged(exam.evidence[0].case, seed), exam.caller.nudged(seed))
    except CallFailed:
        return None
    result = item.predict(hypothesis)
    if result is None or result.output.shape != item.seen.output.shape:
        return None
    gap = item.seen.output - result.output
    return gap.masked_fill(~rows(result, item.seen.form), 0.0).nan_to_num(0.0, 0.0, 0.0)


def is_small(exam: Exam) -> bool:
    """Whether the error, though systematic, is so small that nobody will meet it."""
    item = exam.evidence[0]
    result = item.predict(exam.best)
    return result is not None and item.error(result) <= SMALL * largest(result.output)
