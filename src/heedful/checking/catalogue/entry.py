"""What the catalogue says about one mistake, and how a file of the catalogue writes it down."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, eq=False)
class Variant:
    """One way to make the mistake: the stages it replaces, and words for the report."""

    stages: Mapping[str, Callable[..., Any]]
    words: Mapping[str, object]


@dataclass(frozen=True, eq=False)
class Mistake:
    """One entry of the catalogue.

    Attributes:
        name: Short name, unique: `scale-head-dim`.
        family: The file of the catalogue it stands in: `scale`.
        summary: What it is, in a few words for a list; empty where `says` can stand there.
        says: One line for the report; `{head_dim}` and the other sizes, and the variant's words, are filled in.
        explanation: How it comes about and what it does.
        remedy: What to write instead.
        source: A public thread or text where somebody met it.
        shows: The inputs on which it differs from the right answer.
        variants: The wrong implementations; any of them counts as this mistake.
        also: Other names under which the very same function is known.
        hazard: True when the answer is right on ordinary inputs.
        alone: True when it is not tried together with others: it has too many variants.
        searched: False when a check of its own finds it, instead of the search over combinations.
        subject: What can make it: "attention", "positions", "rotary", "mask" or "cache".
    """

    name: str
    family: str
    says: str
    explanation: str
    remedy: str
    source: str
    shows: str
    variants: tuple[Variant, ...]
    also: tuple[str, ...] = ()
    hazard: bool = False
    alone: bool = False
    searched: bool = True
    subject: str = "attention"
    summary: str = ""

    def sentence(self, words: Mapping[str, object]) -> str:
        """The line for the report, with numbers filled in."""
        return self.says.format_map(dict(words))

    def within(self, stages: type) -> "Mistake":
        """The entry with those of its variants that this chain of stages has a place for."""
        places = {f.name for f in fields(stages)}
        return replace(self, variants=tuple(v for v in self.variants if v.stages.keys() <= places))


class Family:
    """Collects the entries of one file: `family = Family("scale", ...)`, then `@family.mistake(...)`."""

    def __init__(self, name: str, title: str, about: str, subject: str = "attention") -> None:
        self.name, self.title, self.about, self.subject = name, title, about, subject
        self.mistakes: list[Mistake] = []

    def mistake(
        self,
        name: str,
        *,
        says: str,
        remedy: str,
        source: str,
        shows: str,
        stage: str | None = None,
        also: tuple[str, ...] = (),
        hazard: bool = False,
        alone: bool = False,
        searched: bool = True,
        summary: str = "",
        subject: str | None = None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Enter the decorated function; its docstring is the explanation.

        With `stage`, the function is the wrong stage. Without, calling it gives the variants: a list of
        dictionaries from stage to function, each perhaps with a `"words"` item.
        """

        def enter(function: Callable[..., Any]) -> Callable[..., Any]:
            choices: list[dict[str, Any]] = [{stage: function}] if stage else function()
            variants = tuple(
                Variant({k: v for k, v in choice.items() if k != "words"}, choice.get("words", {}))
                for choice in choices
            )
            explanation = inspect.getdoc(function) or ""
            entry = Mistake(
                name, self.name, says, explanation, remedy, source, shows, variants, also, hazard, alone,
                searched and not hazard, subject or self.subject, summary,
            )  # fmt: skip
            self.mistakes.append(entry)
            return function

        return enter
