"""Which module of a model is running, and which modules a name or pattern means."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from types import FrameType
from typing import Any

from torch import nn

Chosen = str | int


class Names:
    """The names of a model's modules.

    Modules are found by the running Python frames, not by hooks: hooks would switch off the fast paths of
    `nn.TransformerEncoderLayer`, and with them change the output.
    """

    def __init__(self, model: nn.Module):
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be an nn.Module, got {type(model).__name__}.")
        self.model: nn.Module = getattr(model, "_orig_mod", model)  # what torch.compile wraps
        self._names = {id(module): name for name, module in self.model.named_modules()}

    def running(self, frame: FrameType | None) -> str | None:
        """The name of the innermost module of the model whose method is running, or None."""
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and id(owner) in self._names:
                return self._names[id(owner)]
            frame = frame.f_back
        return None

    def kind(self, name: str) -> str:
        return type(self.model.get_submodule(name)).__name__

    def check(self, argument: str, patterns: Sequence[Any]) -> None:
        """Raise unless each pattern is a layer's number, or matches a module."""
        for pattern in patterns:
            if isinstance(pattern, bool) or not isinstance(pattern, str | int):
                raise TypeError(
                    f"{argument} must be module names, patterns such as '*.5.*', or layer numbers; got {pattern!r}."
                )
            if isinstance(pattern, int) and pattern < 0:
                raise ValueError(
                    f"{argument}: numbers count from 0, in the order of the first calls; got {pattern}. "
                    "How many there are is not known before the model runs."
                )
            if isinstance(pattern, str) and not any(matches(name, pattern) for name in self._names.values()):
                raise ValueError(
                    f"{argument}: {pattern!r} matches no module of {type(self.model).__name__}. {self._some()}"
                )

    def _some(self) -> str:
        found = [name for name in self._names.values() if "att" in name.rpartition(".")[2].lower()]
        shown = ", ".join(map(repr, (found or list(self._names.values())[1:])[:3]))
        return f"Its modules have names such as {shown}." if shown else "It has no modules inside."


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern is this module's name, covers it with `*`, or names a module that holds it."""
    return name == pattern or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern)


def as_patterns(chosen: Chosen | Sequence[Chosen]) -> tuple[Chosen, ...]:
    """One or several, as a tuple."""
    return tuple(chosen) if isinstance(chosen, Sequence) and not isinstance(chosen, str) else (chosen,)


def listed(names: Sequence[str], most: int = 3) -> Iterator[str]:
    """Some names, quoted, and how many more there are."""
    yield from map(repr, names[:most])
    if len(names) > most:
        yield f"and {len(names) - most} more"
