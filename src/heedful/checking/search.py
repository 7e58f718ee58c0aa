"""Finds the right answer, the mistake, or the pair of mistakes that reproduces what a target returned."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import combinations, product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.checking import catalogue
from heedful.checking.calling import Seen
from heedful.checking.cases import Case
from heedful.checking.catalogue.entry import Mistake, Variant
from heedful.checking.catalogue.masks import fill
from heedful.checking.readings import Reading
from heedful.checking.stages import RIGHT, Call, Result, Stages, attend

Explain = Callable[[Case, Reading, str], Call]
ROUGH = 2e-3  # of the largest value: farther off than this, no closer look is taken


class Made(NamedTuple):
    """A mistake in one of its variants."""

    mistake: Mistake
    variant: Variant


@dataclass(frozen=True)
class Hypothesis:
    """What a target might be doing: how it reads its inputs, and which mistakes it makes."""

    reading: Reading
    made: tuple[Made, ...] = ()

    def plus(self, more: Iterable[Made]) -> "Hypothesis":
        """The same with more mistakes."""
        return replace(self, made=(*self.made, *more))

    def siblings(self) -> "list[Hypothesis]":
        """The same mistakes, one of them in another of its variants."""
        return [
            replace(self, made=(*self.made[:i], Made(m.mistake, variant), *self.made[i + 1 :]))
            for i, m in enumerate(self.made)
            for variant in catalogue.find(m.mistake.name).within(Stages).variants
            if variant is not m.variant
        ]

    @property
    def variants(self) -> tuple[Variant, ...]:
        """What its mistakes put in place of the right stages."""
        return tuple(m.variant for m in self.made)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its mistakes."""
        return tuple(m.mistake.name for m in self.made)


@dataclass(frozen=True)
class Evidence:
    """One case, what the target returned on it, and how a call follows from a reading."""

    case: Case
    seen: Seen
    explain: Explain

    def predict(
        self, hypothesis: Hypothesis, dtype: torch.dtype = torch.float64, finite: bool = False
    ) -> Result | None:
        """What the target would return if the hypothesis held; None when that makes no sense."""
        return predicted(
            self.explain, self.case, hypothesis.reading, self.seen.form, hypothesis.variants, dtype, finite
        )

    def error(self, result: Result | None) -> float:
        """Largest difference, leaving out queries that see nothing. Infinite where that leaves none."""
        if result is None or result.output.shape != self.seen.output.shape:
            return torch.inf
        counted = rows(result, self.seen.form)
        return difference(self.seen.output, result.output, counted) if counted.any() else torch.inf

    def holds(self, hypothesis: Hypothesis, tolerance: float = 0.0) -> bool:
        """Whether the hypothesis reproduces the output to rounding, or within `tolerance` of the largest value.

        The budget is ten times the error that the same computation makes in float32, plus rounding.
        """
        result = self.predict(hypothesis)
        if result is None:
            return False
        if self.within(result, hypothesis, tolerance, finite=False):
            return True
        if result.output.isfinite().all():
            return False
        finite = self.predict(hypothesis, finite=True)
        return finite is not None and self.within(finite, hypothesis, tolerance, finite=True)

    def within(self, result: Result, hypothesis: Hypothesis, tolerance: float, finite: bool) -> bool:
        """Whether the output is as close to this prediction as rounding explains."""
        error = self.error(result)
        size = largest(result.output)
        if error <= tolerance * size:
            return True
        if not error < ROUGH * size:
            return False
        single = self.predict(hypothesis, torch.float32, finite)
        if single is None:
            return False
        own = difference(single.output.double(), result.output, rows(result, self.seen.form))
        return error <= 10 * own + 64 * torch.finfo(torch.float32).eps * size


@lru_cache(maxsize=20000)
def predicted(
    explain: Explain,
    case: Case,
    reading: Reading,
    form: str,
    variants: tuple[Variant, ...],
    dtype: torch.dtype,
    finite: bool,
) -> Result | None:
    """Attention with wrong stages, on one case; None when they clash or the shapes don't fit.

    With `finite`, blocked scores get -1e9 instead of minus infinity. Together with some mistakes (softmax over
    queries, say) that makes a difference, and targets do either.
    """
    stages = RIGHT.with_all(variants)
    if stages is not None and finite:
        stages = stages.with_wrong({"restrict": partial(fill, amount=-1e9)})
    if stages is None:
        return None
    try:
        return attend(cast(explain(case, reading, form), dtype), stages)
    except (RuntimeError, IndexError):
        return None


def rows(result: Result, form: str) -> Tensor:
    """Which outputs count: queries that see a key. (B, H, L, 1), or (B, L, 1) when every head sees one."""
    seen = ~result.empty
    return seen[..., None] if form == "bhld" else seen.all(1)[..., None]


def largest(x: Tensor) -> float:
    """Largest finite magnitude, at least a little more than 0."""
    return max(x.abs().nan_to_num(0.0, 0.0, 0.0).max().item() if x.numel() else 0.0, 1e-6)


def difference(a: Tensor, b: Tensor, where: Tensor) -> float:
    """Largest difference of two tensors; NaN equals NaN, infinity itself, and all else is infinitely far from them."""
    gap = (a - b).abs()
    broken = ~a.isfinite() | ~b.isfinite()
    same = (a == b) | (a.isnan() & b.isnan())
    gap = gap.masked_fill(broken, torch.inf).masked_fill(same, 0.0).masked_fill(~where, 0.0)
    return gap.max().item() if gap.numel() else 0.0


def cast(call: Call, dtype: torch.dtype) -> Call:
    """The call with all its floating-point tensors in this dtype."""

    def move(x: Any) -> Any:
        return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

    fields = {name: move(getattr(call, name)) for name in ("query", "key", "value", "bias")}
    projections = call.projections
    if projections is not None:
        projections = {n: type(p)(*(move(part) for part in p)) for n, p in projections.items()}
    return replace(call, **fields, projections=projections)


def subsets(mistakes: Sequence[Mistake], count: int) -> Iterator[tuple[Made, ...]]:
    """All choices of this many mistakes, in each of their variants."""
    for chosen in combinations(mistakes, count):
        yield from product(*([Made(m, v) for v in m.variants] for m in chosen))


def extend(
    start: Sequence[Hypothesis],
    evidence: Sequence[Evidence],
    mistakes: Sequence[Mistake],
    *,
    counts: Iterable[int] = (0, 1, 2),
    tolerance: float = 0.0,
) -> list[Hypothesis]:
    """The simplest hypotheses that hold on all the evidence.

    Args:
        start: What held so far, most likely first.
        evidence: Cases, those that rule out most first.
        mistakes: Entries that may be added.
        counts: How many may be added; a smaller number that works ends the search.
        tolerance: Accept this error relative to the largest value, for targets that compute with few digits.

    Returns:
        The hypotheses that hold with the smallest total number of mistakes; empty when none does. Once mistakes
        have to be added, only the first of `start` that they make hold is kept.
    """
    for count in counts:
        found: list[Hypothesis] = []
        for hypothesis in start:
            if count > hypothesis.reading.most:
                continue
            showing = showing_variants(hypothesis, evidence, mistakes) if count else []
            together = [m for m in showing if count == 1 or not m.alone]
            choices = (hypothesis.plus(more) for more in subsets(together, count))
            found += [h for h in choices if all(e.holds(h, tolerance) for e in evidence)]
            if found and count:
                break
        if found:
            fewest = min(len(h.made) for h in found)
            return [h for h in found if len(h.made) == fewest]
    return []


def showing_variants(
    hypothesis: Hypothesis, evidence: Sequence[Evidence], mistakes: Sequence[Mistake]
) -> list[Mistake]:
    """The mistakes, with those of their variants that change the prediction, each in its own way."""
    others = (m for m in mistakes if m.name not in hypothesis.names)
    kept = [showing_of(hypothesis, tuple(evidence), m) for m in others]
    return [m for m in kept if m.variants]


@lru_cache(maxsize=20000)
def showing_of(hypothesis: Hypothesis, evidence: tuple[Evidence, ...], mistake: Mistake) -> Mistake:
    """One mistake, with those of its variants that show on this evidence."""
    known = {tuple(fingerprint(e.predict(hypothesis)) for e in evidence)}
    kept = []
    for variant in mistake.variants:
        assumed = hypothesis.plus([Made(mistake, variant)])
        print_of = tuple(fingerprint(e.predict(assumed)) for e in evidence)
        if print_of not in known:
            known.add(print_of)
            kept.append(variant)
    return replace(mistake, variants=tuple(kept))


def fingerprint(result: Result | None) -> tuple[object, ...]:
    """What two predictions share only if they are equal to ten digits: shape, and one number out of all of them."""
    if result is None:
        return ()
    x = result.output
    return (*x.shape, f"{(x.nan_to_num(7.0, 11.0, -13.0).flatten() @ direction(x.numel())).item():.9e}")


@lru_cache(maxsize=100)
def direction(size: int) -> Tensor:
    """A fixed vector."""
    return torch.randn(size, generator=torch.Generator().manual_seed(13), dtype=torch.float64)


def forget() -> None:
    """Drop what was remembered of the targets so far."""
    for function in (predicted, showing_of):
        function.cache_clear()
