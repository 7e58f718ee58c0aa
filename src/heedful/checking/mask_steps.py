"""Finds out what a mask means, and what is wrong with it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from heedful.checking import cases
from heedful.checking.calling import KINDS, MASK_SHAPES, CallFailed, Passing
from heedful.checking.cases import Case, Shape
from heedful.checking.exam import Exam
from heedful.checking.search import Evidence, Hypothesis, extend

SHAPES: dict[str, tuple[str, ...]] = {"mask": MASK_SHAPES, "padding": ("bs", "b11s"), "lengths": ("b",)}


def accepted_passings(exam: Exam, role: str, case_for: Callable[[Passing], Case]) -> dict[str, list[str]]:
    """The shapes in which a mask is accepted, each with the kinds of numbers."""
    claimed = exam.claims.mask_shape
    shapes = SHAPES[role]
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
    case = exam.caller.base(shape or exam.shape)
    if passing.over_keys:
        return cases.with_padding(case)
    return cases.with_mask(case, passing.per_sample, exam.shape.heads if passing.per_head else 1)


MEANINGS = (("keep", "bool"), ("block", "bool"), ("keep", "int"), ("block", "int"), ("add", "float"))


@dataclass(frozen=True)
class Meaning:
    """One way to read a mask, with what was seen under it."""

    reads: str
    kind: str
    evidence: Evidence
    start: tuple[Hypothesis, ...]


def meanings(
    exam: Exam, role: str, shape: str, kinds: Sequence[str], size: Shape | None = None
) -> list[Meaning]:
    """Every way to read the mask that the accepted kinds allow; those that give nothing finite only if all do."""
    found = []
    for reads, kind in MEANINGS:
        if kind not in kinds or (kind == "int" and "bool" in kinds):
            continue
        passing = Passing(role, shape, kind)
        caller = replace(exam.caller, passing=passing)
        field_name = "padding" if passing.over_keys else "mask"
        start = tuple(replace(h, reading=replace(h.reading, **{field_name: reads})) for h in exam.hypotheses)
        found.append(Meaning(reads, kind, exam.look(masked_case(exam, passing, size), caller), start))
    finite = [m for m in found if m.evidence.seen.output.isfinite().any()]
    return finite or found


def mask_step(exam: Exam, role: str = "mask") -> None:
    """Find out what the mask, or the padding mask, means and what is wrong with it."""
    exam.progress(f"trying the {role}")
    shapes = accepted_passings(exam, role, lambda p: masked_case(exam, p))
    size = exam.shape
    if not shapes:
        for other in cases.SUITES:
            size = lengths_of(exam, other)
            shapes = accepted_passings(exam, role, lambda p, s=size: masked_case(exam, p, s))
            if shapes:
                exam.shape = size
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


def lengths_of(exam: Exam, suite: Shape) -> Shape:
    """The examination's sizes, with the batch and the lengths of this suite."""
    batch = 1 if exam.shape.batch == 1 else suite.batch
    return replace(exam.shape, batch=batch, queries=suite.queries, keys=suite.keys)


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


def judge_mask(
    exam: Exam, role: str, chosen: Meaning, held: Sequence[Meaning], options: Sequence[Meaning]
) -> None:
    """Report the meaning as a convention, or as a mistake where the target says otherwise."""
    if role == "lengths":
        exam.record.convention("lengths count the keys that may be attended")
        return
    claim = exam.claims.padding if role == "padding" else exam.claims.mask
    if claim is not None and chosen.reads != claim.what and claim.what != "add":
        right, assumed = claimed_error(exam, chosen, options, claim.what)
        if chosen.reads == "add":
            accused = "mask-added"
        else:
            accused = "mask-inverted"
        exam.record.find(
            accused,
            f"read as {claim.where} says, the largest error is {right:.1e}; read as it acts, {assumed:.1e}",
            {"claim": claim.where, "actual": SPOKEN[chosen.reads]},
        )
        return
    name = "padding mask" if role == "padding" else "mask"
    readings = dict.fromkeys(m.reads for m in (chosen, *held) if m.kind != "int")
    exam.record.convention(
        " and ".join(
            [f"{name} {WORDS[chosen.reads]}"]
            + ["a float mask " + WORDS["add"] for r in readings if r == "add" and chosen.reads != "add"]
        )
    )


def claimed_error(
    exam: Exam, chosen: Meaning, options: Sequence[Meaning], claimed: str
) -> tuple[float, float]:
    """Error when the mask is read as claimed, and as it is meant."""
    other = next((m for m in options if m.reads == claimed), chosen)
    said = [replace(h, reading=replace(h.reading, mask=claimed, padding=claimed)) for h in other.start]
    right = min(other.evidence.error(other.evidence.predict(h)) for h in said)
    assumed = min(chosen.evidence.error(chosen.evidence.predict(h)) for h in chosen.start)
    return right, assumed
