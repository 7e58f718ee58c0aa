"""Writes what an examination of an attention found into its record."""

from typing import Any

from heedful.checking import layouts
from heedful.checking.exam import Exam
from heedful.checking.function_calls import SIDES, Function
from heedful.checking.readings import Reading
from heedful.checking.record import compared, errors, searched, words_of
from heedful.checking.search import Hypothesis, Made, showing_variants
from heedful.checking.smallest import smallest


def conclude(exam: Exam) -> None:
    """The mistakes of the best hypothesis, then the conventions."""
    for made in exam.best.made:
        report(exam, made)
    if all(item.seen.output.isnan().all() for item in exam.evidence):
        exam.record.untold.append(
            "every number of the answer is NaN, so that other mistakes may hide behind it"
        )
    exam.record.convention(*layout_words(exam.caller))
    causality(exam, exam.best)
    exam.record.convention(*what_it_adds(exam.best.reading))
    one_head(exam)


def what_it_adds(reading: Reading) -> list[str]:
    """What the target does by itself beside plain attention."""
    found = []
    if reading.window is not None:
        found.append(reading.window.words())
    if reading.alibi is not None:
        how = "distance" if reading.alibi == "distance" else "the key's position"
        found.append(f"adds ALiBi by {how}")
    if reading.rotary is not None:
        found.append(f"turns queries and keys: {reading.rotary.layout} rotary, base {reading.rotary.base:g}")
    if reading.qk_norm:
        found.append("divides queries and keys by their root mean square")
    if reading.softcap is not None:
        found.append(f"caps scores at {reading.softcap:g} by tanh")
    if reading.sink:
        found.append("adds 1 to the sum of exponentials (a sink whose score is 0)")
    return found


def layout_words(caller: Any) -> list[str]:
    """The layout, and where several tensors come as one, how."""
    if not isinstance(caller, Function) or not caller.packing:
        return [f"layout {layouts.words(caller.layout)}"]
    names = [SIDES[letter] for letter in caller.order]
    packed = f"{', '.join(names[:-1])} and {names[-1]} in one tensor {layouts.words(caller.packing)}"
    return [packed] if caller.same else [f"layout {layouts.words(caller.layout)}", packed]


def report(exam: Exam, made: Made) -> None:
    """One mistake, with the error that is left once it is assumed."""
    name = made.mistake.name
    if name == "scale-missing" and exam.claims.scaled_query is not None:
        exam.record.convention("the query comes scaled")
        return
    if name == "heads-groups-tiled" and not isinstance(exam.caller, Function):
        exam.record.convention(
            "grouped heads are tiled (0,1,0,1); weights of Llama and its like come as (0,0,1,1)"
        )
        return
    right, assumed = errors(exam.best, exam.evidence, [name])
    who = exam.claims.causal.where if exam.claims.causal else "the causal flag"
    words = words_of(exam.sizes, made) | {"who": who}
    exam.record.find(name, compared(right, assumed), words, smallest=smallest(exam, made))


def causality(exam: Exam, hypothesis: Hypothesis) -> None:
    """Which end a causal mask is aligned to; hold the target to what it says about causality."""
    record, reading, claims = exam.record, hypothesis.reading, exam.claims
    align = reading.causal or reading.flag
    if align is None:
        if claims.causal is not None and not any(m.mistake.family == "causal" for m in hypothesis.made):
            record.find("causal-ignored", "every answer depends on every value", {"who": claims.causal.where})
        return
    told = exam.shape.queries != exam.shape.keys
    always = "always causal" if reading.causal else "causal flag"
    if told and claims.alignment is not None and claims.alignment.what != align:
        sizes = f"{exam.shape.queries} queries, {exam.shape.keys} keys"
        claim = claims.alignment
        record.find("causal-wrong-end", sizes, {"actual": align, "claim": claim.where, "claimed": claim.what})
        return
    record.convention(f"{always}, aligned to the {align}" if told else always)


def one_head(exam: Exam) -> None:
    """With a single head some mistakes can't show."""
    if exam.shape.heads > 1 or exam.caller.layout in ("bld", "ld"):
        return
    entries = searched(["heads", "softmax", "scale", "mask"])
    showing = {m.name for m in showing_variants(exam.best, exam.evidence, entries)} | set(exam.best.names)
    hidden = [m.name for m in entries if m.name not in showing and ("head" in m.shows or m.family == "heads")]
    if hidden:
        exam.record.untold.append(f"with one head: {', '.join(hidden)}")
