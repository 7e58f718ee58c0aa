"""Examines a function of (query, key, value, ...), or a module that computes attention."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.checking import construction, functions, modules, softcaps
from heedful.checking.calling import CallFailed
from heedful.checking.cases import CROSS, Shape
from heedful.checking.claims import Claims, read
from heedful.checking.conclusion import conclude
from heedful.checking.decoding import cache_step, has_cache
from heedful.checking.exam import ALL, Exam
from heedful.checking.gradients import gradients
from heedful.checking.hazards import hazards
from heedful.checking.manners import manners
from heedful.checking.mask_steps import mask_step
from heedful.checking.options import Options
from heedful.checking.problems import CannotCheck
from heedful.checking.projections import find
from heedful.checking.properties import describe
from heedful.checking.randomness import probability, report_noise, still, training
from heedful.checking.readings import Reading, always_on
from heedful.checking.record import Record, searched
from heedful.checking.roles import parameters, role_of
from heedful.checking.rounding import is_rounding, is_small
from heedful.checking.search import Evidence, Hypothesis, extend
from heedful.checking.stages import Window
from heedful.checking.steps import bias_step, causal_step, grouped_step, long_step, reached_by, weights_step
from heedful.checking.windows import seen_windows

LOOSE = (
    3e-2  # of the largest value: what half precision inside may cost, where the error proves to be rounding
)
Progress = Callable[[str], None]
Ways = Mapping[Shape, Sequence[Any]]


def examine(target: Any, name: str, options: Options, progress: Progress) -> Record:
    """Find out what is wrong with an attention."""
    if inspect.isclass(target) or isinstance(target, nn.Module):
        return examine_module(target, name, options, progress)
    record = Record(name)
    function = functions.function_of(target, options)
    claims = read(target, dict(function.names))
    progress("working out how to call it")
    ways = stilled(record, functions.accepted(function, claims, options))
    readings = always_on(softcaps.told(target, options), softcaps.measured(ways))
    exam = explained(record, ways, readings, claims, progress)
    if exam is not None:
        finish(exam, ways)
        training(exam, probability(exam.caller, built=False))
    return record


def examine_module(target: Any, name: str, options: Options, progress: Progress) -> Record:
    """Find out what is wrong with a module, or with a class of them."""
    record = Record(name)
    progress("building it")
    built, given = construction.construct(target, options) if inspect.isclass(target) else (target, {})
    options = construction.left_for_call(target, options) if inspect.isclass(target) else options
    if not isinstance(built, nn.Module):
        return examine(built, name, options, progress)
    built = construction.prepare(built)
    progress("working out how to call it")
    found = find(built)
    if not found.matrices:
        return examine(functions.forward_function(built), name, options, progress)
    try:
        module = modules.module_of(built, found, options)
        accepted = modules.accepted(module, options)
    except CannotCheck as problem:
        if not inspect.isclass(target):
            raise
        raise CannotCheck(f"{problem}\n{construction.built_as(target, given)}") from problem
    claims = read(target, dict(module.names))
    ways = stilled(record, accepted)
    exam = explained(record, ways, modules.always_on_in(module), claims, progress, found.unknown)
    if exam is not None:
        record.convention(*modules.projection_words(found, exam.best.reading))
        finish(exam, ways)
        asked = inspect.isclass(target) and any(role_of(p.name, ["dropout"]) for p in parameters(target))
        training(exam, probability(exam.caller, built=asked))
    return record


def explained(
    record: Record,
    ways: Ways,
    readings: Sequence[Reading],
    claims: Claims,
    progress: Progress,
    unknown: Sequence[str] = (),
) -> Exam | None:
    """The examination that explains the plain answer; None, with what can be said in the record, when none does.

    Raises:
        CannotCheck: None does, and the target says it is something else, or has parameters whose use is unknown.
    """
    if not ways:
        return None
    exams = [
        [start(record, caller, shape, claims, progress) for caller in callers]
        for shape, callers in ways.items()
    ]
    exam = explain_plain(exams, readings)
    if exam is None and unknown:
        raise CannotCheck(
            f"it has parameters that I don't know the use of ({', '.join(unknown[:6])}), and with the others alone "
            "its answer can't be explained. Check the function inside it that takes query, key and value."
        )
    if exam is None and claims.other is not None:
        raise CannotCheck(
            f"{claims.other.where} says that it is {claims.other.what}. That is another function than softmax(q k / "
            "sqrt(d)) v, the only one I compare with, and no mistake I know leads from there to its answer."
        )
    if exam is None:
        every = [exam for same_shape in exams for exam in same_shape]
        describe(next((exam for exam in every if exam.hypotheses), every[0]), readings)
    return exam


def stilled(record: Record, ways: Ways) -> dict[Shape, list[Any]]:
    """The ways to call the target, without randomness; none when it can't be taken out."""
    noises = {
        shape: [still(caller, caller.fit(shape)) for caller in callers] for shape, callers in ways.items()
    }
    report_noise(record, [n for found in noises.values() for n in found])
    calm = {shape: [n.caller for n in found if n.caller is not None] for shape, found in noises.items()}
    return {shape: callers for shape, callers in calm.items() if callers}


def start(record: Record, caller: Any, shape: Shape, claims: Claims, progress: Progress) -> Exam:
    """The examination that starts with one way to call the target."""
    exam = Exam(record, caller, caller.fit(shape), claims, most=caller.most, progress=progress)
    exam.evidence.append(exam.look(caller.base(exam.shape)))
    if exam.evidence[0].seen.output.isnan().all():
        exam.evidence += equal_lengths(exam)
    return exam


def equal_lengths(exam: Exam) -> list[Evidence]:
    """The answer for as many queries as keys, where it has numbers: under a causal mask, say, no key is unseen then."""
    try:
        equal = exam.look(exam.caller.base(replace(exam.shape, queries=CROSS.queries, keys=CROSS.queries)))
    except CallFailed:
        return []
    return [] if equal.seen.output.isnan().all() else [equal]


def explain_plain(exams: Sequence[Sequence[Exam]], readings: Sequence[Reading]) -> Exam | None:
    """The layout and the reading, with as few mistakes as possible, that reproduce the plain answer.

    Args:
        exams: For each suite of sizes, the most general first, one for each way to call the target.
        readings: What the target may do by itself.
    """
    exams[0][0].progress("comparing with the right answer")
    for tolerance, counts in ((0.0, (0, 1)), (LOOSE, (0,)), (0.0, (2,)), (LOOSE, (1,))):
        for same_shape in [exams[0], *exams[1:][-1:]] if 2 in counts else exams:
            exam = simplest(same_shape, readings, counts, tolerance)
            if exam is not None and (not tolerance or is_rounding(exam) or is_small(exam)):
                return more_general(exam, exams[0], tolerance)
    return None


def simplest(
    exams: Sequence[Exam], readings: Sequence[Reading], counts: Sequence[int], tolerance: float
) -> Exam | None:
    """The first of these examinations that some hypothesis with so many mistakes explains."""
    for count in counts:
        for exam in (e for e in exams if count <= e.caller.most):
            exam.tolerance = tolerance
            begin = [Hypothesis(r) for r in ordered(exam, readings)]
            families = (*ALL, "cache") if has_cache(exam.caller) else ALL
            found = extend(begin, exam.evidence, searched(families), counts=[count], tolerance=tolerance)
            if found:
                exam.hypotheses = found
                return exam
    return None


def more_general(exam: Exam, others: Sequence[Exam], tolerance: float) -> Exam:
    """Carry an explanation found on special sizes over to general ones, with one more mistake if need be."""
    for other in others:
        if other is exam or other.caller.arrangement != exam.caller.arrangement:
            continue
        found = extend(exam.hypotheses, other.evidence, searched(ALL), counts=[0, 1], tolerance=tolerance)
        if found:
            other.hypotheses, other.tolerance = found, tolerance
            return other
    return exam


def ordered(exam: Exam, readings: Sequence[Reading]) -> list[Reading]:
    """The readings, likely ones first: with a window if there is one, causal if answers depend on different values."""
    reached = reach(exam.evidence[0], exam.caller)
    causal = not bool((reached == reached[0]).all())
    near = [
        replace(reading, window=window)
        for window in windows_of(exam, reached)
        for reading in readings
        if reading.alibi is None and reading.causal == (None if window.after else window.align)
    ]
    readings = [*near, *readings]
    return sorted(readings, key=lambda r: (-r.most, (r.causal is not None) != causal))


def windows_of(exam: Exam, reached: Tensor) -> list[Window]:
    """The windows that explain who is reached; where there are two, the one that equal lengths confirm."""
    found = seen_windows(reached)
    if len(found) < 2:
        return found
    confirmed = [w for equal in equal_lengths(exam) for w in seen_windows(reach(equal, exam.caller))]
    return [w for w in found if any((w.before, w.after) == (c.before, c.after) for c in confirmed)] or found


def reach(item: Evidence, caller: Any) -> Tensor:
    """Which queries' answers depend on which values: bool (L, S), found by changing one value at a time."""
    columns = [reached_by(index, item, caller) for index in range(item.case.shape.keys)]
    return torch.stack(columns, dim=1)


def finish(exam: Exam, ways: Ways) -> None:
    """Everything after the plain case."""
    judge_lengths(exam, ways)
    names = exam.caller.names
    for role in ("mask", "padding", "lengths"):
        if role in names:
            mask_step(exam, role)
    if "causal" in names:
        causal_step(exam)
    for step in (
        bias_step,
        long_step,
        grouped_step,
        weights_step,
        conclude,
        cache_step,
        hazards,
        manners,
        gradients,
    ):
        step(exam)


def judge_lengths(exam: Exam, ways: Ways) -> None:
    """A function of query and key that only works for equal lengths is wrong, unless it is causal by itself."""
    case = exam.evidence[0].case
    if case.shape.queries != case.shape.keys or exam.caller.same:
        return
    if exam.best.reading.causal is not None and CROSS not in ways:
        return
    unequal = exam.caller.base(replace(exam.shape, queries=CROSS.queries, keys=CROSS.keys))
    right = Evidence(unequal, exam.evidence[0].seen, exam.caller.explain).predict(exam.best)
    if right is None or right.output.shape[-2] != CROSS.queries:
        return
    silent = any(s.queries != s.keys for s in ways)
    words = {
        "keys": CROSS.keys,
        "queries": CROSS.queries,
        "outcome": "give a wrong answer" if silent else "raise",
    }
    exam.record.find(
        "operands-equal-lengths", f"right for {case.shape.queries} queries and {case.shape.keys} keys", words
    )
