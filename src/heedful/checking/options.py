"""What a user may say about a target."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from heedful.checking.layouts import PACKED, WORDS, known

KINDS = ("attention", "positions", "rotary", "mask", "cache")


@dataclass(frozen=True)
class Options:
    """What a user may say when it can't be worked out, or to save the trying.

    Attributes:
        kind: What the target is: "attention", "positions", "rotary", "mask" or "cache".
        layout: Order of the axes, as `layouts.py` spells it.
        heads: Number of heads of a module.
        settings: Values for parameters by name.

    Raises:
        ValueError: There is no such kind or layout.
    """

    kind: str | None = None
    layout: str | None = None
    heads: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}; it must be one of {', '.join(KINDS)}")
        if self.layout is not None and not known(self.layout):
            raise ValueError(
                f"layout is {self.layout!r}; it must be one of {', '.join(WORDS)}, or for a packed tensor something "
                f"like {', '.join(PACKED[:3])} or {PACKED[6]}"
            )
