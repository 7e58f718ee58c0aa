"""The record of one examination: evidence, what holds so far, and the findings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from heedful.checking import catalogue
from heedful.checking.catalogue.entry import Mistake
from heedful.checking.diagnosis import RIGHT, WRONG, Diagnosis, Finding
from heedful.checking.search import Evidence, Hypothesis, Made
from heedful.checking.stages import Sizes, Stages


@dataclass
class Record:
    """Findings so far. Examinations of all kinds of targets write into one of these."""

    target: str
    mistakes: list[Finding] = field(default_factory=list)
    hazards: list[Finding] = field(default_factory=list)
    conventions: list[str] = field(default_factory=list)
    properties: list[str] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)

    def find(
        self,
        name: str,
        evidence: str,
        words: Mapping[str, Any],
        *,
        smallest: str = "",
        family: str | None = None,
    ) -> None:
        """Add the catalogue's entry of this name, once."""
        entry = catalogue.find(name)
        listed = self.hazards if entry.hazard else self.mistakes
        if any(f.name == name for f in listed):
            return
        listed.append(
            Finding(name, family or entry.family, entry.sentence(words), evidence, entry.remedy, smallest)
        )

    def convention(self, *words: str) -> None:
        """Add conventions, each once."""
        self.conventions += [w for w in words if w not in self.conventions]

    def diagnosis(self) -> Diagnosis:
        """The finished diagnosis."""
        verdict = WRONG if self.mistakes or self.properties else RIGHT
        return Diagnosis(
            self.target,
            verdict,
            tuple(self.mistakes),
            tuple(self.hazards),
            tuple(self.conventions),
            tuple(self.properties),
            tuple(self.untold),
        )


def words_of(sizes: Sizes, made: Made) -> dict[str, Any]:
    """What a catalogue line may mention: sizes, numbers made from them, and the variant's own words."""
    words: dict[str, Any] = sizes._asdict()
    words |= {
        "root": sizes.head_dim**0.5,
        "model_root": (sizes.heads * sizes.head_dim) ** 0.5,
        "after": sizes.head_dim**-0.5,
        "width": sizes.heads * sizes.head_dim,
        "asked": sizes.heads,
        "narrow": sizes.head_dim,
    }
    words |= made.variant.words
    if "axis" in made.variant.words:
        words["divisor"] = words[str(made.variant.words["axis"])] ** 0.5
    return words


def errors(
    hypothesis: Hypothesis, evidence: Sequence[Evidence], without: Iterable[str]
) -> tuple[float, float]:
    """Largest error with these mistakes taken out of the hypothesis, and with them in it."""
    left_out = set(without)
    corrected = replace(hypothesis, made=tuple(m for m in hypothesis.made if m.mistake.name not in left_out))

    def largest(h: Hypothesis) -> float:
        return max(min(e.error(e.predict(h)), e.error(e.predict(h, finite=True))) for e in evidence)

    return largest(corrected), largest(hypothesis)


def compared(right: float, assumed: float) -> str:
    """The two errors in words."""
    return f"with that assumed the largest error falls from {right:.1e} to {assumed:.1e}"


def searched(families: Iterable[str]) -> list[Mistake]:
    """The entries of these families that the search may combine."""
    wanted = set(families)
    entries = [m for m in catalogue.mistakes("attention") if m.searched and m.family in wanted]
    if "cache" in wanted:
        entries.append(catalogue.find("cache-unwritten").within(Stages))
    return entries
