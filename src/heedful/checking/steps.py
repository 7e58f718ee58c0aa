"""One step of an examination per kind of input: causal flag, long inputs, bias, grouped heads, weights."""

from dataclasses import replace

import torch

from heedful.checking import cases
from heedful.checking.calling import CallFailed
from heedful.checking.catalogue import find
from heedful.checking.exam import Exam
from heedful.checking.function_calls import Function
from heedful.checking.functions import Stub
from heedful.checking.mask_steps import masked_case
from heedful.checking.search import Evidence, Hypothesis, Made, difference, largest


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
    """Where there is causality, look at a length at which blocks of a kernel would show."""
    reading = exam.best.reading
    if reading.causal is None and reading.flag is None:
        return
    exam.progress("trying a longer sequence")
    shape = replace(exam.shape, queries=150, keys=150)
    case = exam.caller.base(shape)
    case = cases.with_causal(case) if reading.causal is None else case
    try:
        new = exam.look(case, replace(exam.caller, passing=None))
    except CallFailed:
        return
    exam.narrow(exam.extend(new, exam.hypotheses, ("causal",)), new, "with 150 positions")


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
