"""Examines a function of (query, key, value, ...)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heedful.checking import cases
from heedful.checking.calling import Function
from heedful.checking.cases import CROSS, EQUAL_LENGTHS, SUITES, Shape
from heedful.checking.claims import Claims, read
from heedful.checking.examination import Record, compared, errors, searched, words_of
from heedful.checking.functions import Options, accepted, fitted, function_of
from heedful.checking.gradients import gradients
from heedful.checking.hazards import hazards
from heedful.checking.manners import manners
from heedful.checking.readings import Reading, always_on
from heedful.checking.search import Evidence, Hypothesis, extend
from heedful.checking.stages import Sizes
from heedful.checking.steps import (
    ALL,
    Exam,
    bias_step,
    causal_step,
    grouped_step,
    long_step,
    mask_step,
    weights_step,
)

LOOSE = 3e-2  # of the largest value: what half precision inside may cost


def examine(target: Callable[..., Any], name: str, options: Options, progress: Callable[[str], None]) -> Record:
    """Find out what is wrong with a function of query, key and value."""
    record = Record(name)
    function = function_of(target, options)
    claims = read(target, dict(function.names))
    progress("working out how to call it")
    ways = accepted(function, claims, options)
    exam = explain_plain(record, ways, claims, progress)
    if exam is None:
        return record
    judge_lengths(exam, ways)
    further(exam)
    conclude(exam)
    hazards(exam)
    manners(exam)
    gradients(exam)
    return record


def further(exam: Exam) -> None:
    """Everything but the plain case."""
    names = exam.caller.names
    if "mask" in names:
        mask_step(exam, "mask")
    if "padding" in names:
        mask_step(exam, "padding")
    if "causal" in names:
        causal_step(exam)
    bias_step(exam)
    long_step(exam)
    grouped_step(exam)
    weights_step(exam)


def explain_plain(
    record: Record, ways: dict[Shape, list[Function]], claims: Claims, progress: Callable[[str], None]
) -> Exam | None:
    """The layout and the reading, with as few mistakes as possible, that reproduce the plain answer."""
    progress("comparing with the right answer")
    exams = [
        [plain_exam(record, caller, fitted(shape, caller.layout), claims, progress) for caller in callers]
        for shape, callers in ways.items()
    ]
    for tolerance, counts in ((0.0, (0, 1)), (0.0, (2,)), (LOOSE, (0, 1))):
        for same_shape in exams[:1] + exams[-1:] if 2 in counts else exams:
            exam = simplest(same_shape, counts, tolerance)
            if exam is not None:
                return more_general(exam, exams[0], tolerance)
    record.properties.append("no known mistake, and no pair of them, reproduces the answer")
    return None


def simplest(exams: Sequence[Exam], counts: Sequence[int], tolerance: float) -> Exam | None:
    """The first of these examinations that some hypothesis with so many mistakes explains."""
    for count in counts:
        for exam in exams:
            exam.tolerance = tolerance
            start = [Hypothesis(r) for r in readings(exam)]
            found = extend(start, exam.evidence, searched(ALL), counts=[count], tolerance=tolerance)
            if found:
                exam.hypotheses = found
                return exam
    return None


def more_general(exam: Exam, others: Sequence[Exam], tolerance: float) -> Exam:
    """Carry an explanation found on special sizes over to general ones, with one more mistake if need be."""
    for other in others:
        if other is exam or other.caller.layout != exam.caller.layout:
            continue
        found = extend(exam.hypotheses, other.evidence, searched(ALL), counts=[0, 1], tolerance=tolerance)
        if found:
            other.hypotheses, other.tolerance = found, tolerance
            return other
    return exam


def plain_exam(
    record: Record, caller: Function, size: Shape, claims: Claims, progress: Callable[[str], None]
) -> Exam:
    """The examination that starts with one way to call the target."""
    exam = Exam(record, caller, size, claims, progress=progress)
    exam.evidence.append(exam.look(cases.plain(size)))
    return exam


def readings(exam: Exam) -> list[Reading]:
    """What the target may do by itself. Where every answer depends on every value, it is not causal."""
    if reach(exam).all():
        return [r for r in always_on() if r.causal is None]
    return sorted(always_on(), key=lambda r: (r.rare, r.causal is None))


def reach(exam: Exam) -> Tensor:
    """Which queries' answers depend on which values: bool (L, S), found by changing one value at a time."""
    item = exam.evidence[0]
    columns = []
    for index in range(item.case.shape.keys):
        value = item.case.value.clone()
        value[:, :, index] += 1.0
        seen = exam.caller.observe(replace(item.case, value=value)).output
        moved = (seen - item.seen.output).abs().nan_to_num(1.0)
        axes = (0, 1, 3) if item.seen.form == "bhld" else (0, 2)
        columns.append(moved.amax(axes) > 1e-6)
    return torch.stack(columns, dim=1)


def judge_lengths(exam: Exam, ways: dict[Shape, list[Function]]) -> None:
    """A function of query and key that only works for equal lengths is wrong, unless it is causal by itself."""
    if exam.shape.queries != exam.shape.keys:
        return
    hypothesis = exam.hypotheses[0]
    if hypothesis.reading.causal is not None and CROSS not in ways:
        return
    case = cases.plain(replace(exam.shape, queries=CROSS.queries, keys=CROSS.keys))
    right = Evidence(case, exam.evidence[0].seen, exam.caller.explain).predict(hypothesis)
    if right is None or right.output.shape[-2] != case.shape.queries:
        return
    silent = any(s.queries != s.keys for s in ways)
    words = {"keys": CROSS.keys, "queries": CROSS.queries}
    words["outcome"] = "give a wrong answer" if silent else "raise"
    exam.record.find(
        "operands-equal-lengths",
        f"right for {EQUAL_LENGTHS.queries} queries and {EQUAL_LENGTHS.keys} keys",
        words,
    )


def conclude(exam: Exam) -> None:
    """Write the mistakes of the best hypothesis, and the conventions, into the record."""
    hypothesis = exam.hypotheses[0]
    shape = exam.shape
    sizes = Sizes(shape.batch, shape.heads, shape.queries, shape.keys, shape.head_dim, shape.value_dim)
    for made in hypothesis.made:
        right, assumed = errors(hypothesis, exam.evidence, [made.mistake.name])
        words = words_of(sizes, made) | {"who": exam.claims.causal.where if exam.claims.causal else "the flag"}
        exam.record.find(made.mistake.name, compared(right, assumed), words)
    conventions(exam, hypothesis)


def conventions(exam: Exam, hypothesis: Hypothesis) -> None:
    """Report how the target reads its inputs; hold it to what it says about causality."""
    record, reading, claims = exam.record, hypothesis.reading, exam.claims
    layouts = {"bhld": "(batch, heads, length, size)", "blhd": "(batch, length, heads, size)",
               "bld": "(batch, length, size)", "ld": "(length, size)", "ble": "(batch, length, heads * size)"}  # fmt: skip
    record.convention(f"layout {layouts[exam.caller.layout]}")
    align = reading.causal or reading.flag
    if align is not None:
        told = exam.shape.queries != exam.shape.keys
        always = "always causal" if reading.causal else "causal flag"
        record.convention(f"{always}, aligned to the {align}" if told else always)
        if told and claims.alignment is not None and claims.alignment.what != align:
            record.find(
                "causal-wrong-end",
                f"{exam.shape.queries} queries, {exam.shape.keys} keys",
                {"actual": align, "claim": claims.alignment.where, "claimed": claims.alignment.what},
            )
    elif claims.causal is not None and not any(m.mistake.family == "causal" for m in hypothesis.made):
        record.find("causal-ignored", "no query's answer depends on its position", {"who": claims.causal.where})
    if reading.alibi is not None:
        record.convention(f"adds ALiBi by {'distance' if reading.alibi == 'distance' else 'key position'}")


__all__: Sequence[str] = ["SUITES", "examine"]
