"""One step of an examination per kind of input: plain, mask, padding, causal flag, bias, groups, weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from heedful.checking import cases
from heedful.checking.calling import KINDS, MASK_SHAPES, CallFailed, Passing, Seen
from heedful.checking.cases import Case, Shape
from heedful.checking.claims import Claims
from heedful.checking.examination import Record, searched
from heedful.checking.readings import Reading
from heedful.checking.search import Evidence, Explain, Hypothesis, difference, extend, largest
from heedful.checking.stages import Call

ALL = ("softmax", "scale", "mask", "causal", "heads", "operands", "module", "positions")


class Caller(Protocol):
    """Something that can run a case and say what the right answer to it would be."""

    names: Any
    passing: Passing | None

    def observe(self, case: Case, dtype: torch.dtype = torch.float32, seed: int = 0) -> Seen:
        """Run one case."""
        ...

    @property
    def explain(self) -> Explain:
        """How a case becomes a call of the mathematics. Hashable: predictions are remembered by it."""
        ...


@dataclass
class Exam:
    """An examination under way."""

    record: Record
    caller: Any
    shape: Shape
    claims: Claims
    hypotheses: list[Hypothesis] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    tolerance: float = 0.0
    progress: Callable[[str], None] = lambda words: None

    def look(self, case: Case, caller: Any = None) -> Evidence:
        """Run a case and keep what is needed to explain it."""
        caller = caller or self.caller
        return Evidence(case, caller.observe(case), caller.explain)

    def narrow(
        self, found: Sequence[Hypothesis], new: Evidence, what: str
    ) -> bool:
        """Go on with the hypotheses that hold on the new evidence, or note that none does."""
        if not found:
            self.record.properties.append(f"{what}: no known mistake reproduces the answer")
            return False
        self.hypotheses = list(found)
        self.evidence.append(new)
        return True

    def extend(self, new: Evidence, start: Sequence[Hypothesis], families: Sequence[str] = ALL) -> list[Hypothesis]:
        """The simplest hypotheses from `start` that hold on the new evidence, and on the old."""
        return extend(start, [new, *self.evidence], searched(families), tolerance=self.tolerance)


def accepted_passings(exam: Exam, role: str, case_for: Callable[[Passing], Case]) -> dict[str, list[str]]:
    """The shapes in which a mask is accepted, each with the kinds of numbers."""
    claimed = exam.claims.mask_shape
    shapes: tuple[str, ...] = ("bs", "b11s") if role == "padding" else MASK_SHAPES
    if claimed is not None and role == "mask":
        shapes = (claimed.what, *(s for s in shapes if s != claimed.what))
    found: dict[str, list[str]] = {}
    for shape in shapes:
        for kind in KINDS:
            passing = Passing(role, shape, kind)
            try:
                replace(exam.caller, passing=passing).observe(case_for(passing))
            except CallFailed:
                continue
            found.setdefault(shape, []).append(kind)
        if shape in found and len(found) == 1 and shape != "bs":
            break
    return found


def masked_case(exam: Exam, passing: Passing, shape: Shape | None = None) -> Case:
    """A case with a mask that this passing can carry."""
    case = cases.plain(shape or exam.shape)
    if passing.over_keys:
        return cases.with_padding(case)
    return cases.with_mask(case, passing.per_sample, passing.per_head)


MEANINGS = (("keep", "bool"), ("block", "bool"), ("keep", "int"), ("block", "int"), ("add", "float"))


@dataclass(frozen=True)
class Meaning:
    """One way to read a mask, with what was seen under it."""

    reads: str
    kind: str
    evidence: Evidence
    start: tuple[Hypothesis, ...]


def meanings(exam: Exam, role: str, shape: str, kinds: Sequence[str], size: Shape | None = None) -> list[Meaning]:
    """Every way to read the mask that the accepted kinds allow."""
    found = []
    for reads, kind in MEANINGS:
        if kind not in kinds or (kind == "int" and "bool" in kinds):
            continue
        passing = Passing(role, shape, kind)
        caller = replace(exam.caller, passing=passing)
        field_name = "padding" if passing.over_keys else "mask"
        start = tuple(replace(h, reading=replace(h.reading, **{field_name: reads})) for h in exam.hypotheses)
        found.append(Meaning(reads, kind, exam.look(masked_case(exam, passing, size), caller), start))
    return found


def mask_step(exam: Exam, role: str = "mask") -> None:
    """Find out what the mask, or the padding mask, means and what is wrong with it."""
    exam.progress(f"trying the {role}")
    shapes = accepted_passings(exam, role, lambda p: masked_case(exam, p))
    size = exam.shape
    if not shapes:
        for size in (s for s in cases.SUITES if s != exam.shape):
            shapes = accepted_passings(exam, role, lambda p, s=size: masked_case(exam, p, fit(exam, s)))
            if shapes:
                size = fit(exam, size)
                break
    if not shapes:
        exam.record.untold.append(f"the {role}: no shape that I know was accepted")
        return
    shape, kinds = next(iter(shapes.items()))
    options = meanings(exam, role, shape, kinds, size)
    held = [m for m in options if extend(m.start, [m.evidence], [], tolerance=exam.tolerance)]
    claim = exam.claims.padding if role == "padding" or "l" not in shape else exam.claims.mask
    chosen = choose(held, claim.what if claim else None)
    if chosen is None:
        explain_mask(exam, role, shape, order_by_claim(options, claim.what if claim else None))
        return
    exam.narrow(extend(chosen.start, [chosen.evidence], [], tolerance=exam.tolerance), chosen.evidence, role)
    exam.caller = replace(exam.caller, passing=Passing(role, shape, chosen.kind))
    judge_mask(exam, role, chosen, held, options)


def fit(exam: Exam, size: Shape) -> Shape:
    """A suite's sizes with as many heads as this examination has."""
    if exam.shape.heads == 1:
        return replace(size, batch=min(size.batch, exam.shape.batch), heads=1, kv_heads=1)
    return size


def choose(held: Sequence[Meaning], claimed: str | None) -> Meaning | None:
    """The claimed meaning where it holds, else the first."""
    return next((m for m in held if m.reads == claimed), held[0] if held else None)


def order_by_claim(options: list[Meaning], claimed: str | None) -> list[Meaning]:
    """The claimed meaning first, then keep, add and block."""
    rank = {"keep": 1, "add": 2, "block": 3}
    return sorted(options, key=lambda m: (m.reads != claimed, m.kind == "int", rank[m.reads]))


def explain_mask(exam: Exam, role: str, shape: str, options: Sequence[Meaning]) -> None:
    """No meaning makes the masked answer right: look for mistakes under each."""
    best: list[Hypothesis] = []
    chosen = options[0]
    for meaning in options:
        found = exam.extend(meaning.evidence, meaning.start)
        if found and (not best or len(found[0].made) < len(best[0].made)):
            best, chosen = found, meaning
    if exam.narrow(best, chosen.evidence, f"with a {role} mask" if role == "padding" else "with a mask"):
        exam.caller = replace(exam.caller, passing=Passing(role, shape, chosen.kind))


WORDS = {"keep": "True = may attend", "block": "True = blocked", "add": "is added to the scores (0 and -inf)"}
SPOKEN = {"keep": "lets True attend", "block": "blocks where True", "add": "is added to the scores"}


def judge_mask(exam: Exam, role: str, chosen: Meaning, held: Sequence[Meaning], options: Sequence[Meaning]) -> None:
    """Report the meaning as a convention, or as a mistake where the target says otherwise."""
    claim = exam.claims.padding if role == "padding" else exam.claims.mask
    if claim is not None and chosen.reads != claim.what and claim.what != "add":
        right, assumed = claimed_error(exam, chosen, options, claim.what)
        if chosen.reads == "add":
            accused = "mask-added"
        else:
            accused = "mask-inverted"
        exam.record.find(
            accused,
            f"read as {claim.where} says, the largest error is {right:.1e}; the other way round it is {assumed:.1e}",
            {"claim": claim.where, "actual": SPOKEN[chosen.reads]},
        )
        return
    name = "padding mask" if role == "padding" else "mask"
    readings = dict.fromkeys(m.reads for m in (chosen, *held) if m.kind != "int")
    exam.record.convention(" and ".join([f"{name} {WORDS[chosen.reads]}"] + [
        "a float mask " + WORDS["add"] for r in readings if r == "add" and chosen.reads != "add"
    ]))


def claimed_error(exam: Exam, chosen: Meaning, options: Sequence[Meaning], claimed: str) -> tuple[float, float]:
    """Error when the mask is read as claimed, and as it is meant."""
    other = next((m for m in options if m.reads == claimed), chosen)
    said = [replace(h, reading=replace(h.reading, mask=claimed, padding=claimed)) for h in other.start]
    right = min(other.evidence.error(other.evidence.predict(h)) for h in said)
    assumed = min(chosen.evidence.error(chosen.evidence.predict(h)) for h in chosen.start)
    return right, assumed


def causal_step(exam: Exam) -> None:
    """Find out what the causal flag does."""
    exam.progress("trying the causal flag")
    try:
        new = exam.look(cases.with_causal(cases.plain(exam.shape)), replace(exam.caller, passing=None))
    except CallFailed as error:
        exam.record.untold.append(f"the causal flag: {error}")
        return
    start = [replace(h, reading=replace(h.reading, flag=f)) for f in ("end", "start") for h in exam.hypotheses]
    exam.narrow(exam.extend(new, start), new, "with the causal flag")


def long_step(exam: Exam) -> None:
    """Where there is causality, look at a length at which blocks of a kernel would show."""
    reading = exam.hypotheses[0].reading
    if reading.causal is None and reading.flag is None:
        return
    exam.progress("trying a longer sequence")
    shape = replace(exam.shape, queries=150, keys=150)
    case = cases.plain(shape)
    case = cases.with_causal(case) if reading.causal is None else case
    try:
        new = exam.look(case, replace(exam.caller, passing=None))
    except CallFailed:
        return
    exam.narrow(exam.extend(new, exam.hypotheses, ("causal",)), new, "with 150 positions")


def bias_step(exam: Exam) -> None:
    """Numbers added to the scores: by a parameter of their own, or in a float mask."""
    caller = exam.caller
    case = cases.with_bias(cases.plain(exam.shape), per_head=False)
    if "bias" not in caller.names:
        if caller.passing is None or caller.passing.kind != "float" or caller.passing.role != "mask":
            return
        case = cases.with_bias(masked_case(exam, caller.passing), per_head=False)
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
    if exam.shape.heads == 1:
        return
    shape = replace(exam.shape, batch=3, heads=4, kv_heads=2)
    caller = replace(exam.caller, passing=None)
    if "module" in caller.names:
        from heedful.checking.functions import Stub

        caller = replace(caller, constants={**caller.constants, caller.names["module"]: Stub(2)})
    try:
        new = exam.look(cases.plain(shape, "grouped heads"), caller)
    except CallFailed:
        return
    exam.progress("trying grouped heads")
    if exam.narrow(exam.extend(new, exam.hypotheses), new, "with 4 query heads and 2 key heads"):
        if "heads-groups-tiled" not in exam.hypotheses[0].names:
            exam.record.convention("grouped heads are neighbors")


def weights_step(exam: Exam) -> None:
    """Compare the returned weights with those that made the output."""
    known = [e for e in exam.evidence if e.seen.weights is not None]
    if not known:
        return
    exam.progress("looking at the returned weights")
    hypothesis = exam.hypotheses[0]
    for how in ("head", "mean"):
        if all(weights_hold(e, hypothesis, how) for e in known):
            report_weights(exam, how)
            return
    scored = [
        h
        for h in (hypothesis.plus([(m, v)]) for m in searched(["module"]) if m.name == "weights-are-scores"
                  for v in m.variants)
        if all(weights_hold(e, h, "head") for e in known)
    ]  # fmt: skip
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
