"""One step of an examination per kind of input: causal flag, long inputs, bias, grouped heads, weights."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heedful.checking import cases
from heedful.checking.calling import CallFailed
from heedful.checking.catalogue import find
from heedful.checking.exam import Exam
from heedful.checking.function_calls import Function
from heedful.checking.functions import Stub
from heedful.checking.mask_steps import masked_case
from heedful.checking.search import Evidence, Hypothesis, Made, difference, largest
from heedful.checking.stages import Window

LONG = 150


def causal_step(exam: Exam) -> None:
    """Find out what the causal flag does."""
    exam.progress("trying the causal flag")
    try:
        new = exam.look(cases.with_causal(exam.caller.base(exam.shape)), replace(exam.caller, passing=None))
    except CallFailed as error:
        exam.record.untold.append(f"the causal flag: {error}")
        return
    start = [
        replace(h, reading=replace(h.reading, flag=f)) for f in ("end", "start") for h in exam.hypotheses
    ]
    exam.narrow(exam.extend(new, start), new, "with the causal flag")


def long_step(exam: Exam) -> None:
    """Look at a length at which the blocks of a kernel would show, and windows."""
    exam.progress("trying a longer sequence")
    reading = exam.best.reading
    case = exam.caller.base(replace(exam.shape, queries=LONG, keys=LONG))
    case = cases.with_causal(case) if reading.causal is None and reading.flag is not None else case
    caller = replace(exam.caller, passing=None)
    try:
        new = exam.look(case, caller)
    except CallFailed:
        return
    causal = reading.causal is not None or reading.flag is not None
    families = ("causal", "softmax") if causal else ("softmax",)
    found = exam.extend(new, exam.hypotheses, families) or exam.extend(
        new, with_window(exam, new, caller), ()
    )
    exam.narrow(found, new, f"with {LONG} positions")


def with_window(exam: Exam, item: Evidence, caller: Any) -> list[Hypothesis]:
    """The hypotheses with the window that the first and the last value show; none when there is none."""
    moved = [reached_by(index, item, caller) for index in (0, item.case.shape.keys - 1)]
    if not all(m.any() for m in moved):
        return []
    before = int(moved[0].nonzero().max())
    after = len(moved[1]) - 1 - int(moved[1].nonzero().min())
    window = Window(before, after, exam.best.reading.causal or "end")
    return [replace(h, reading=replace(h.reading, window=window)) for h in exam.hypotheses]


def reached_by(index: int, item: Evidence, caller: Any) -> Tensor:
    """Which queries' answers depend on this value: bool (L,)."""
    value = item.case.value.clone()
    value[:, :, index] += 1.0
    seen = caller.observe(item.case.with_side("value", value)).output
    moved = (seen - item.seen.output).abs().nan_to_num(1.0)
    return moved.amax((0, 1, 3) if item.seen.form == "bhld" else (0, 2)) > 1e-6


def bias_step(exam: Exam) -> None:
    """Numbers added to the scores: by a parameter of their own, or in a float mask."""
    caller = exam.caller
    case = cases.with_bias(exam.caller.base(exam.shape))
    if "bias" not in caller.names:
        if caller.passing is None or caller.passing.kind != "float" or caller.passing.role != "mask":
            return
        case = cases.with_bias(masked_case(exam, caller.passing))
        if caller.passing.over_keys:
            return
    exam.progress("trying a bias")
    try:
        new = exam.look(case, caller)
    except CallFailed as error:
        exam.record.untold.append(f"the bias: {error}")
        return
    exam.narrow(exam.extend(new, exam.hypotheses), new, "with a bias on the scores")


def grouped_step(exam: Exam) -> None:
    """Fewer key heads than query heads."""
    if exam.shape.heads == 1 or not isinstance(exam.caller, Function):
        return
    shape = replace(exam.shape, batch=3, heads=4, kv_heads=2)
    caller = replace(exam.caller, passing=None)
    if "module" in caller.names:
        caller = replace(caller, constants={**caller.constants, caller.names["module"]: Stub(2)})
    try:
        new = exam.look(cases.plain(shape, "grouped heads"), caller)
    except CallFailed:
        return
    exam.progress("trying grouped heads")
    held = exam.narrow(exam.extend(new, exam.hypotheses), new, "with 4 query heads and 2 key heads")
    if held and "heads-groups-tiled" not in exam.best.names:
        exam.record.convention("grouped heads are neighbors")


def weights_step(exam: Exam) -> None:
    """Compare the returned weights with those that made the output."""
    known = [e for e in exam.evidence if e.seen.weights is not None]
    if not known:
        return
    exam.progress("looking at the returned weights")
    hypothesis = exam.best
    for how in ("head", "mean"):
        if all(weights_hold(e, hypothesis, how) for e in known):
            report_weights(exam, how)
            return
    entry = find("weights-are-scores")
    scored = [hypothesis.plus([Made(entry, variant)]) for variant in entry.variants]
    scored = [h for h in scored if all(weights_hold(e, h, "head") for e in known)]
    if scored:
        exam.hypotheses = scored
        return
    worst = max(mismatch(e, hypothesis) for e in known)
    if worst > 1e-4:
        exam.record.find(
            "weights-mismatch",
            "compared on the inputs with and without a mask",
            {"difference": worst},
        )


def weights_hold(item: Evidence, hypothesis: Hypothesis, how: str) -> bool:
    """Whether the returned weights are the predicted ones, per head or averaged."""
    return weights_gap(item, hypothesis, how) < 1e-4


def weights_gap(item: Evidence, hypothesis: Hypothesis, how: str) -> float:
    """Largest difference between returned and predicted weights, relative to the largest prediction."""
    predicted = item.predict(hypothesis)
    if predicted is None:
        return torch.inf
    wanted = predicted.weights.mean(1) if how == "mean" else predicted.weights
    seen, empty = item.seen.weights, predicted.empty
    if how == "mean" and seen is not None and seen.ndim == 4 and seen.shape[1] == 1:
        seen = seen[:, 0]
    if seen is None or seen.shape != wanted.shape:
        return torch.inf
    where = ~(empty.any(1) if how == "mean" else empty)[..., None]
    return difference(seen, wanted, where) / largest(wanted)


def mismatch(item: Evidence, hypothesis: Hypothesis) -> float:
    """How far the returned weights are from the ones that made the output."""
    return min(weights_gap(item, hypothesis, "head"), weights_gap(item, hypothesis, "mean"))


def report_weights(exam: Exam, how: str) -> None:
    """Weights per head or averaged: a convention, unless the target says otherwise."""
    claim = exam.claims.weights
    if exam.shape.heads == 1:
        return
    if how == "mean" and claim is not None and claim.what == "head":
        exam.record.find("weights-averaged", "they equal the mean over the heads", {"claim": claim.where})
        return
    exam.record.convention("weights per head" if how == "head" else "weights averaged over the heads")
