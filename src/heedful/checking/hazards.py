"""Inputs on which a target that is otherwise right goes wrong: empty rows, masked NaN, large scores."""

from dataclasses import replace

import torch
from torch import Tensor

from heedful.checking.calling import CallFailed, Seen
from heedful.checking.cases import Case
from heedful.checking.exam import Exam
from heedful.checking.mask_steps import masked_case
from heedful.checking.precision import few_digits, half_sums
from heedful.checking.search import Evidence, difference, largest, rows
from heedful.checking.stages import Result

HIGH = 200.0  # exp(88) is the largest that float32 holds
OVERWHELMING = 3e4
CLOSE = 1e-3
TELLING = 0.05


def hazards(exam: Exam) -> None:
    """Try everything in this file, and precision."""
    exam.progress("trying inputs that break things")
    for trial in (empty_rows, masked_nan, overflow, overcome, few_digits, half_sums):
        try:
            trial(exam)
        except CallFailed as error:
            exam.record.untold.append(f"{trial.__name__.replace('_', ' ')}: {error}")


def blocking(exam: Exam) -> bool:
    """What True means in this target's mask, as the value that blocks."""
    return exam.best.reading.mask == "block"


def compare(exam: Exam, case: Case) -> tuple[Seen, Result | None, Result | None]:
    """What is seen on a case, what is right, and what a finite number in place of minus infinity would give."""
    hypothesis = exam.best
    seen = exam.caller.observe(case)
    item = Evidence(case, seen, exam.caller.explain)
    return seen, item.predict(hypothesis), item.predict(hypothesis, finite=True)


def near(a: Tensor, b: Tensor, size: float, tolerance: float = CLOSE) -> bool:
    """Whether two tensors are finite and agree."""
    return bool(a.isfinite().all()) and (a - b).abs().max().item() <= tolerance * size


def empty_rows(exam: Exam) -> None:
    """A query that may see nothing: one row of the mask, or one sample that is all padding."""
    passing = exam.caller.passing
    if passing is None:
        return
    case = masked_case(exam, passing)
    if passing.over_keys and case.same:
        return
    if passing.over_keys:
        padding = case.padding.clone()
        padding[-1] = exam.best.reading.padding == "block"
        case = replace(case, padding=padding)
        shown = f"the padding mask of sample {padding.shape[0] - 1} blocks every key"
    else:
        mask = case.mask.clone()
        mask[-1, :, 1] = blocking(exam)
        case = replace(case, mask=mask)
        shown = f"row 1 of the mask (sample {mask.shape[0] - 1}) blocks every key"
    seen, right, finite = compare(exam, case)
    if right is None or finite is None or right.output.shape != seen.output.shape or not right.empty.any():
        return
    row = row_of(right, seen.form)
    got, wanted, average = seen.output[row], right.output[row], finite.output[row]
    if got.numel() == 0:
        return
    if near(got, wanted, largest(right.output)):
        exam.record.convention("a query that may see nothing gets 0")
        return
    if near(got, average, largest(right.output)):
        exam.record.find("empty-row-mean", "the row is the plain average of the values", {}, smallest=shown)
    elif not got.isfinite().all():
        exam.record.find("empty-row-nan", f"{(~got.isfinite()).sum().item()} numbers of that row are NaN", {},
                         smallest=shown)  # fmt: skip
    else:
        exam.record.convention("a query that may see nothing gets neither 0 nor an average")


def row_of(right: Result, form: str) -> tuple[Tensor, ...]:
    """An index for the outputs of queries that see nothing."""
    empty = right.empty if form == "bhld" else right.empty.all(1)
    return empty.nonzero(as_tuple=True)


def last_key_blocked(exam: Exam) -> Case | None:
    """A case in which nobody may see the last key; with causality alone, the first query may not."""
    passing = exam.caller.passing
    if passing is None:
        case = exam.evidence[0].case
        return case if exam.best.reading.causal is not None else None
    case = masked_case(exam, passing)
    if passing.over_keys:
        padding = case.padding.clone()
        padding[:, -1] = exam.best.reading.padding == "block"
        return replace(case, padding=padding)
    mask = case.mask.clone()
    mask[..., -1] = blocking(exam)
    return replace(case, mask=mask)


def masked_nan(exam: Exam) -> None:
    """NaN in the last value, and then in the last key, where nobody may look."""
    case = last_key_blocked(exam)
    if case is None:
        return
    for side in ("value", "key"):
        poisoned = getattr(case, side).clone()
        poisoned[:, :, -1] = torch.nan
        seen, right, _ = compare(exam, case.with_side(side, poisoned))
        if right is None or right.output.shape != seen.output.shape:
            return
        clean = right.output.isfinite()
        if not clean.any() or seen.output[clean].isfinite().all():
            continue
        spoiled = (~seen.output[clean].isfinite()).float().mean().item()
        exam.record.find(
            "masked-nan-leak",
            f"NaN in one blocked {side} makes {spoiled:.0%} of the output NaN that must stay finite",
            {},
            smallest=f"{side}[..., -1, :] = NaN, with that key blocked",
        )
        return


def scaled_to(exam: Exam, case: Case, score: float) -> Case:
    """The case with inputs so large that the largest score has about this size."""
    for _ in range(3):
        factor = score / max(exam.largest_score(case), 1e-6)
        if case.same:
            factor **= 0.5
        case = case.with_side("query", case.query * factor)
    return case


def overflow(exam: Exam) -> None:
    """Scores of 200: exp of them is infinite in float32. What ordinary scores break doesn't count."""
    if any("normalize" in m.variant.stages or "factor" in m.variant.stages for m in exam.best.made):
        return
    plain = exam.evidence[0]
    case = scaled_to(exam, plain.case, HIGH)
    seen, right, _ = compare(exam, case)
    broken = plain.seen.output.isfinite() & ~seen.output.isfinite()
    if right is not None and right.output.isfinite().all() and broken.any():
        exam.record.find(
            "softmax-overflow",
            f"{broken.float().mean().item():.0%} of the output becomes NaN or infinite",
            {"score": HIGH},
            smallest=f"one query and one key whose score is above 88 (tried: {HIGH:.0f})",
        )


def overcome(exam: Exam) -> None:
    """Blocked scores far above the allowed ones, against a number like -1e4 in place of minus infinity."""
    if exam.caller.passing is None or any(m.mistake.family == "mask" for m in exam.best.made):
        return
    case = scaled_to(exam, masked_case(exam, exam.caller.passing), OVERWHELMING)
    item = exam.look(case)
    right, single = item.predict(exam.best), item.predict(exam.best, torch.float32)
    if right is None or single is None or right.output.shape != item.seen.output.shape:
        return
    if not right.output.isfinite().all():
        return
    own = difference(single.output.double(), right.output, rows(right, item.seen.form))
    gap = item.error(right)
    if gap > max(10 * own, TELLING * largest(right.output)):
        exam.record.find(
            "mask-finite-fill",
            f"the output is off by {gap:.1e}",
            {"score": OVERWHELMING},
            smallest=f"two keys, one of them blocked and with a score {OVERWHELMING:.0e} above the other's",
        )
