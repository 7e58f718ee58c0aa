"""Finds the smallest input on which a mistake shows."""

from dataclasses import replace
from functools import cache
from itertools import product

from torch import Tensor

from heedful.checking import cases
from heedful.checking.calling import CallFailed
from heedful.checking.cases import Case, Shape
from heedful.checking.exam import Exam
from heedful.checking.function_calls import Function
from heedful.checking.search import Evidence, Hypothesis, Made, difference, largest, rows

VISIBLE = 1e-3
PRINTED = 14  # more numbers than this are not printed


@cache
def sizes() -> tuple[Shape, ...]:
    """Sizes to try, the fewest numbers first."""
    grid = product((1, 2), (1, 2), (1, 2, 3), (1, 2, 3), (1, 2), (1, 2))
    shapes = [Shape(b, h, h, queries, keys, d, v) for b, h, queries, keys, d, v in grid]
    return tuple(sorted(shapes, key=elements))


def elements(shape: Shape) -> int:
    """How many numbers go in."""
    rows = shape.queries * shape.head_dim + shape.keys * (shape.head_dim + shape.value_dim)
    return shape.batch * shape.heads * rows


def smallest(exam: Exam, made: Made) -> str:
    """Words for the smallest input on which this mistake changes the answer, with both answers where they fit."""
    others = Hypothesis(exam.best.reading, tuple(m for m in exam.best.made if m is not made))
    shown = shown_on(exam, others)
    if shown is None:
        return ""
    seen_lengths: set[tuple[int, ...]] = set()
    for shape in sizes():
        lengths = (shape.batch, shape.queries, shape.keys)
        if not isinstance(exam.caller, Function):
            if lengths in seen_lengths:
                continue
            seen_lengths.add(lengths)
            shape = replace(exam.shape, batch=shape.batch, queries=shape.queries, keys=shape.keys)
        elif exam.shape.heads == 1 and shape.heads > 1:
            continue
        words = tried(exam, others, build(exam, shown.name, shape))
        if words:
            return words
    return counted(exam, shown.shape)


def shown_on(exam: Exam, others: Hypothesis) -> Case | None:
    """The case that first tells the target from what it would be without the mistake."""
    for item in exam.evidence:
        right, wrong = item.predict(others), item.predict(exam.best)
        if right is None or wrong is None or right.output.shape != wrong.output.shape:
            return item.case
        if difference(right.output, wrong.output, rows(right, item.seen.form)) > VISIBLE * largest(
            right.output
        ):
            return item.case
    return None


def build(exam: Exam, kind: str, shape: Shape) -> Case:
    """A case of this kind and these sizes."""
    if kind == "grouped heads":
        shape = replace(shape, heads=4, kv_heads=2)
    case = exam.caller.base(shape)
    passing = exam.caller.passing
    if kind == "mask" and passing is not None:
        return cases.with_mask(case, passing.per_sample, shape.heads if passing.per_head else 1)
    if kind == "padding" and shape.keys > 1:
        return cases.with_padding(case)
    if kind == "causal":
        return cases.with_causal(case)
    return cases.with_bias(case) if kind == "bias" else case


def tried(exam: Exam, others: Hypothesis, case: Case) -> str:
    """Run one small case; words if the target's answer on it isn't the right one."""
    try:
        seen = exam.caller.observe(case)
    except CallFailed:
        return ""
    right = Evidence(case, seen, exam.caller.explain).predict(others)
    if right is None or right.output.shape != seen.output.shape:
        return ""
    if others.made and not right.output.isfinite().all():
        return ""
    if not difference(seen.output, right.output, rows(right, seen.form)) > VISIBLE * largest(right.output):
        return ""
    return words(exam, case, seen.output, right.output, "with this mended" if others.made else "right is")


def words(exam: Exam, case: Case, got: Tensor, wanted: Tensor, label: str) -> str:
    """The sizes, and the numbers where they are few."""
    sized = counted(exam, case.shape)
    if not isinstance(exam.caller, Function) or elements(case.shape) > PRINTED:
        return sized
    inputs = "; ".join(f"{side} {numbers(getattr(case, side))}" for side in ("query", "key", "value"))
    mask = f"; mask {case.mask.int().flatten().tolist()}" if case.mask is not None else ""
    return f"{sized}: {inputs}{mask} gives {numbers(got)}, {label} {numbers(wanted)}"


def counted(exam: Exam, shape: Shape) -> str:
    """The sizes that matter to this target."""
    sizes = [(shape.batch, "sample"), (shape.queries, "query"), (shape.keys, "key")]
    if isinstance(exam.caller, Function):
        sizes[1:1] = [(shape.heads, "head")]
    return ", ".join(f"{n} {noun if n == 1 else plural(noun)}" for n, noun in sizes)


def plural(noun: str) -> str:
    """`queries`, `heads`."""
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun != "key" else f"{noun}s"


def numbers(x: Tensor) -> str:
    """Two digits each."""
    return "[" + ", ".join(f"{n:.2f}" for n in x.flatten().tolist()) + "]"
