"""What a check found out."""

import dataclasses
from dataclasses import dataclass
from typing import Any

RIGHT, WRONG, UNCLEAR = "right", "wrong", "could not tell"


@dataclass(frozen=True)
class Finding:
    """One mistake or hazard.

    Attributes:
        name: The catalogue's name for it; `heedful check --explain NAME` tells more.
        family: The part of attention it belongs to.
        description: One line with the numbers of this target.
        evidence: What was compared: the error against the right answer, and once the mistake is assumed.
        remedy: What to write instead.
        smallest: The smallest input found that shows it, with the right and the actual answer; perhaps empty.
    """

    name: str
    family: str
    description: str
    evidence: str
    remedy: str
    smallest: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Everything a check found out about one target.

    Attributes:
        target: The target and its parameters.
        verdict: "right", "wrong" or "could not tell".
        mistakes: Wrong mathematics, or not what the target itself says.
        hazards: Right on ordinary inputs, and not on the ones described.
        conventions: What the target takes and gives, where people differ. Never held against it.
        properties: When it is wrong and no known mistake fits: what can be said anyway.
        untold: Mistakes that the target's sizes don't let show.
        explanation: Why nothing could be told, when the verdict says so.
    """

    target: str
    verdict: str
    mistakes: tuple[Finding, ...] = ()
    hazards: tuple[Finding, ...] = ()
    conventions: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()
    explanation: str = ""

    def exit_status(self, strict: bool = False) -> int:
        """0 right, 1 wrong, 2 could not tell. With `strict` a hazard counts as wrong."""
        if self.verdict == RIGHT and strict and self.hazards:
            return 1
        return {RIGHT: 0, WRONG: 1, UNCLEAR: 2}[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of plain lists and strings, as `--json` prints it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Diagnosis":
        """The reverse of `to_dict`."""
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, (list, tuple)) else v for k, v in data.items()}
        for name in ("mistakes", "hazards"):
            fields[name] = tuple(Finding(**f) for f in fields[name])
        return cls(**fields)

    def __str__(self) -> str:
        from heedful.checking.report import as_text

        return as_text(self)

    def __rich__(self) -> object:
        from heedful.checking.report import Colored

        return Colored(self)

    def _repr_html_(self) -> str:
        from heedful.checking.report import as_html

        return as_html(self)
