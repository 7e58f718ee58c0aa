"""How a target treats its inputs: it should leave them alone, whatever their strides, batch and dtype."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heedful.checking.calling import CallFailed, Seen
from heedful.checking.cases import Case
from heedful.checking.exam import Exam
from heedful.checking.search import largest

CLOSE = 1e-4


def manners(exam: Exam) -> None:
    """Try everything in this file."""
    exam.progress("trying strides, batches and dtypes")
    for trial in (inputs_changed, strides, one_sample, one_query, dtypes):
        trial(exam)


def inputs_changed(exam: Exam) -> None:
    """Compare the inputs before and after a call."""
    item = exam.evidence[-1]
    given = exam.caller.arguments(item.case, torch.float32)
    before = {n: x.clone() for n, x in given.items() if isinstance(x, Tensor)}
    try:
        exam.caller.run(dict(given))
    except CallFailed:
        return
    changed = [n for n, x in before.items() if not torch.equal(x.nan_to_num(), given[n].nan_to_num())]
    if changed:
        which = " and ".join(changed)
        exam.record.find("inputs-changed", f"{which} differs after the call", {"which": which},
                         smallest=item.case.shape.words())  # fmt: skip


def strided(x: Tensor, first: int, second: int) -> Tensor:
    """The same numbers, with two axes the other way round in memory."""
    return x.transpose(first, second).contiguous().transpose(first, second) if x.ndim >= 3 else x


def strides(exam: Exam) -> None:
    """The same numbers in other orders in memory."""
    if exam.caller.array != "torch":
        return
    item = exam.evidence[0]
    for axes in ((-1, -2), (-2, -3)):
        given = exam.caller.arguments(item.case, torch.float32)
        moved = {n: strided(x, *axes) if isinstance(x, Tensor) else x for n, x in given.items()}
        outcome = outcome_of(exam, moved, item.case, item.seen.output)
        if outcome:
            shown = f"x.transpose{axes}.contiguous().transpose{axes} for each input x"
            words = {"outcome": outcome}
            exam.record.find(
                "needs-contiguous", "the same numbers, transposed in memory", words, smallest=shown
            )
            return


def outcome_of(exam: Exam, arguments: dict[str, Any], case: Case, wanted: Tensor) -> str:
    """What goes wrong when the target is called so: empty when nothing does."""
    try:
        seen: Seen = exam.caller.read(exam.caller.run(arguments), case)
    except CallFailed as error:
        return f"raise {str(error).splitlines()[0]}" if "returned" not in str(error) else str(error)
    gap = (seen.output - wanted).abs().nan_to_num(0.0).max().item()
    return f"change the answer by {gap:.1e}" if gap > CLOSE * largest(wanted) else ""


def only(case: Case, samples: slice, queries: slice = slice(None)) -> Case:
    """Some samples and queries of a case."""
    if case.same:
        return case.with_side("query", case.query[samples])
    cut = {side: getattr(case, side)[samples] for side in ("query", "key", "value")}
    cut["query"] = cut["query"][:, :, queries]
    for name in ("mask", "padding"):
        tensor = getattr(case, name)
        if tensor is not None and tensor.shape[0] > 1:
            tensor = tensor[samples]
        cut[name] = tensor if tensor is None or name == "padding" else tensor[..., queries, :]
    return replace(case, **cut)


def one_sample(exam: Exam) -> None:
    """One sample alone, against the same sample in a batch."""
    item = exam.evidence[0]
    if item.case.shape.batch == 1:
        return
    case = only(item.case, slice(0, 1))
    outcome = outcome_of(exam, exam.caller.arguments(case, torch.float32), case, item.seen.output[:1])
    if outcome and "softmax-over-batch" not in exam.best.names:
        exam.record.find("batch-of-one", "compared with the same sample in a batch",
                         {"where": "alone", "outcome": reworded(outcome)}, smallest="a batch of one")  # fmt: skip


def one_query(exam: Exam) -> None:
    """One query alone, as in decoding."""
    item = exam.evidence[0]
    shape = item.case.shape
    if shape.queries == shape.keys or exam.best.reading.causal == "start":
        return
    case = only(item.case, slice(None), slice(shape.queries - 1, None))
    axis = 2 if item.seen.form == "bhld" else 1
    wanted = item.seen.output.narrow(axis, shape.queries - 1, 1)
    if any(m.mistake.name.startswith(("softmax-over", "heads-", "operands-", "scale-wrong"))
           for m in exam.best.made):  # fmt: skip
        return
    outcome = outcome_of(exam, exam.caller.arguments(case, torch.float32), case, wanted)
    if outcome:
        words = {"where": "as the only query", "outcome": reworded(outcome)}
        exam.record.find(
            "batch-of-one", "compared with the same query among others", words, smallest="one query"
        )


def reworded(outcome: str) -> str:
    """`raise ...` and `change ...` with a singular subject."""
    first, _, rest = outcome.partition(" ")
    return f"it {first}s {rest}" if first in ("raise", "change") else outcome


def dtypes(exam: Exam) -> None:
    """Inputs in half precision and in float64."""
    if exam.caller.array != "torch":
        return
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        try:
            seen = exam.caller.observe(exam.evidence[0].case, dtype)
        except CallFailed:
            continue
        if seen.dtype != dtype:
            names = {
                "given": str(dtype).removeprefix("torch."),
                "returned": str(seen.dtype).removeprefix("torch."),
            }
            exam.record.find(
                "dtype-changed", "the dtype of the output", names, smallest=f"inputs in {names['given']}"
            )
            return
