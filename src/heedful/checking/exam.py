"""An examination of an attention under way: how it is called, what was seen, what holds so far."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from heedful.checking.cases import Case, Shape
from heedful.checking.claims import Claims
from heedful.checking.record import Record, searched
from heedful.checking.search import Evidence, Hypothesis, cast, extend
from heedful.checking.stages import RIGHT, Sizes, attend

ALL = ("softmax", "scale", "mask", "causal", "heads", "operands", "module", "positions")


@dataclass
class Exam:
    """An examination under way.

    Attributes:
        record: Where findings go.
        caller: How the target is called: a `Function` or a `Module`.
        shape: Sizes of the inputs it takes; for a module, with its number of heads.
        claims: What it says about itself.
        hypotheses: What holds on all the evidence, most likely first.
        evidence: What was seen, the plain case first.
        most: How many mistakes are tried: fewer for a way of calling that few people want.
        tolerance: Accepted error relative to the largest value, when the target computes with few digits.
        progress: Told what is going on.
    """

    record: Record
    caller: Any
    shape: Shape
    claims: Claims
    hypotheses: list[Hypothesis] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    most: int = 2
    tolerance: float = 0.0
    progress: Callable[[str], None] = lambda words: None

    @property
    def best(self) -> Hypothesis:
        """The most likely hypothesis."""
        return self.hypotheses[0]

    @property
    def sizes(self) -> Sizes:
        """Sizes for the catalogue's lines."""
        shape = self.shape
        lengths = (shape.batch, shape.heads, shape.queries, shape.keys)
        return Sizes(*lengths, shape.head_dim, shape.value_dim, self.caller.features(shape))

    def look(self, case: Case, caller: Any = None) -> Evidence:
        """Run a case and keep what is needed to explain it."""
        caller = caller or self.caller
        return Evidence(case, caller.observe(case), caller.explain)

    def narrow(self, found: Sequence[Hypothesis], new: Evidence, what: str) -> bool:
        """Go on with the hypotheses that hold on the new evidence, or note that none does."""
        if not found:
            self.record.properties.append(f"{what}: no known mistake reproduces the answer")
            return False
        self.hypotheses = list(found)
        self.evidence.append(new)
        return True

    def extend(
        self, new: Evidence, start: Sequence[Hypothesis], families: Sequence[str] = ALL
    ) -> list[Hypothesis]:
        """The simplest hypotheses from `start` that hold on the new evidence, and on the old.

        A mistake may turn out to be another variant of itself, which the old evidence could not tell apart.
        """
        wider = [*start, *(other for h in start for other in h.siblings())]
        return extend(wider, [new, *self.evidence], searched(families), tolerance=self.tolerance)

    def largest_score(self, case: Case) -> float:
        """The largest score before softmax, by the best hypothesis."""
        stages = RIGHT.with_all(self.best.variants)
        assert stages is not None
        call = self.caller.explain(case, self.best.reading, self.evidence[0].seen.form)
        logits = attend(
            cast(call, torch.float64), replace(stages, report=lambda weights, logits: logits)
        ).weights
        return logits.masked_fill(~logits.isfinite(), 0.0).abs().max().item()
