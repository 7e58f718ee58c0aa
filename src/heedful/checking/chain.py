"""A computation as a chain of named functions, any of which a mistake can replace."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from heedful.checking.catalogue.entry import Variant


@dataclass(frozen=True)
class Chain:
    """The base of the classes that hold one function per stage; their defaults are right.

    Attributes:
        replaced: Names of the stages that have been replaced.
    """

    replaced: frozenset[str] = field(default=frozenset(), kw_only=True)

    def with_wrong(self, wrong: Mapping[str, Callable[..., Any]]) -> Self | None:
        """A copy with these stages replaced; None where one of them is not here, or has been replaced already."""
        if self.replaced & wrong.keys() or wrong.keys() - {f.name for f in fields(self)}:
            return None
        return replace(self, **wrong, replaced=self.replaced | wrong.keys())

    def with_all(self, variants: Iterable[Variant]) -> Self | None:
        """A copy with all these variants in place; None when two of them replace the same stage."""
        chain: Self | None = self
        for variant in variants:
            chain = chain.with_wrong(variant.stages) if chain is not None else None
        return chain
