"""Change the weights of chosen modules of a model while it runs: `heedful.edit`."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch import nn

from .._call import Call, check_edits
from .._listeners import listening
from ..reductions import Edit, Reduction
from .advice import check_kernels, what_to_do
from .arguments import Arguments
from .naming import Names, listed, matches
from .torch_calls import told


@contextmanager
def edit(model: nn.Module, edits: Mapping[str, Edit | Sequence[Edit]]) -> Iterator[None]:
    """Change attention weights inside a model while it runs: head knock-out, edge cutting, or an edit of your own.

        with heedful.edit(model, {"model.layers.3.self_attn": heedful.edits.ablate(0, 4)}):
            changed = model(**inputs)

    The chosen modules run heedful's function, with these edits before the values are summed; all others run as they
    are. A watch around or inside the block sees the edited weights.

    Args:
        model: Any PyTorch model. A compiled one runs uncompiled inside the block.
        edits: By module name or pattern ("*.self_attn", "decoder"), a function panel -> weights such as
            `edits.ablate(0)`, `edits.cut(rows, keys)`, `edits.without_sink()`, or a sequence of them, applied in order.
            A module that several patterns match gets the edits of all, in the order of the mapping.

    Returns:
        A context manager.

    Raises:
        TypeError, ValueError: An argument is not as above, an edit does not fit a call, or a name matches no module.
        RuntimeError: The block is over and an edit was never applied; the message says why.

    Cost:
        The chosen modules cost what heedful's function does, with the weights in panels. While an edit is open, the
        fast paths of `nn.TransformerEncoder` are off in the whole process.
    """
    names = Names(model)
    chosen = _checked(names, edits)
    check_kernels(names.model)
    editor = Editor(names, chosen)
    with told(), listening(editor), _slow_paths():
        yield
    unused = [pattern for pattern in chosen if pattern not in editor.applied]
    if unused:
        raise RuntimeError(
            f"edit() was never applied to {', '.join(listed(unused))} of {type(names.model).__name__}: in this block "
            f"no attention of these modules ran that can be edited. If the model did run: {what_to_do(names.model)}"
        )


def _checked(names: Names, edits: Mapping[str, Edit | Sequence[Edit]]) -> dict[str, tuple[Edit, ...]]:
    if not isinstance(edits, Mapping) or not edits:
        raise TypeError(
            f"edits must map module names to edits, such as {{'layers.3': ablate(0)}}, got {edits!r}."
        )
    names.check("edits", tuple(edits))
    chosen = {}
    for name, given in edits.items():
        if not isinstance(name, str):
            raise TypeError(f"edits must map names of modules to edits, got {name!r} as a name.")
        chosen[name] = tuple(given) if isinstance(given, Iterable) and not callable(given) else (given,)
        wrong = next((each for each in chosen[name] if not callable(each)), None)
        if wrong is not None:
            raise TypeError(
                f"edits[{name!r}] must be a function panel -> weights, or several, got {given!r}."
            )
    return chosen


class Editor:
    """Adds edits to the calls of chosen modules."""

    def __init__(self, names: Names, chosen: dict[str, tuple[Edit, ...]]):
        self.names, self.chosen = names, chosen
        self.applied: set[str] = set()

    def edits(self, frame: FrameType) -> bool:
        """Whether the running module is a chosen one."""
        return bool(self._patterns(frame))

    def before(self, call: Call, reductions: tuple[Reduction, ...]) -> tuple[Call, tuple[Reduction, ...]]:
        """Add this module's edits to the call."""
        patterns = self._patterns(sys._getframe(1))
        edits = tuple(each for pattern in patterns for each in self.chosen[pattern])
        if not edits:
            return call, reductions
        B, H, L, _ = call.query.shape
        check_edits(edits, (B, H, L, call.key.shape[2]))
        self.applied.update(patterns)
        return replace(call, edits=(*call.edits, *edits)), reductions

    def after(self, weights: Any) -> None:
        """Nothing is kept."""

    def heard(self, frame: FrameType, arguments: Arguments | None, why_not: str) -> None:
        """Other modules run as they are."""

    def _patterns(self, frame: FrameType) -> list[str]:
        name = self.names.running(frame)
        return [] if name is None else [pattern for pattern in self.chosen if matches(name, pattern)]


@contextmanager
def _slow_paths() -> Iterator[None]:
    """Fast paths compute attention where no edit can reach it."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
