"""What a watch does with each call: which module it is of, and what to keep of it."""

import sys
from dataclasses import replace
from types import FrameType

from .. import backends
from .._call import Call
from .._weights import Weights
from ..reductions import Reduction
from .answers import Answers
from .arguments import Arguments
from .naming import Names, matches
from .seen import Seen
from .series import Series


class Watcher:
    """Listens to the calls of one model, and keeps what was asked for in a `Seen`."""

    def __init__(
        self,
        names: Names,
        reductions: tuple[Reduction, ...],
        layers: tuple[str | int, ...] | None,
        seen: Seen,
    ):
        self.names, self.reductions, self.layers, self.seen = names, reductions, layers, seen

    def running(self, frame: FrameType) -> str | None:
        """The module of the watched model that is running."""
        return self.names.running(frame)

    def edits(self, frame: FrameType) -> bool:
        """Watching changes nothing."""
        return False

    def before(self, call: Call, reductions: tuple[Reduction, ...]) -> tuple[Call, tuple[Reduction, ...]]:
        """Add the watch's questions to a call of heedful's own function."""
        name = self.names.running(sys._getframe(1))
        if name is None or not self._wanted(name):
            return call, reductions
        return call, tuple(dict.fromkeys((*reductions, *self.reductions)))

    def after(self, weights: Weights) -> None:
        """Keep a call of heedful's own function."""
        name = self.names.running(sys._getframe(1))
        if name is None or not self._wanted(name):
            return
        if self.reductions:
            self._keep(name, Answers.of(weights, self.reductions))
        else:
            given = weights._call, weights._backend, weights._batch_shape, weights._head_shape
            self._keep(name, Weights(_owned(given[0]), *given[1:], weights._remembered, weights._grad))

    def heard(self, frame: FrameType, arguments: Arguments | None, why_not: str) -> None:
        """Keep a call of torch's functions, or why it cannot be kept."""
        name = self.names.running(frame)
        if name is None:
            return
        if self.names.kind(name) == "TransformerEncoderLayer":
            name = f"{name}.self_attn".removeprefix(".")
        if not self._wanted(name):
            return
        if arguments is None:
            self.seen._missed.setdefault(name, why_not)
            return
        try:
            call = arguments.call()
            backend = backends.choose(call, "auto")
        except (TypeError, ValueError, NotImplementedError) as error:
            self.seen._missed.setdefault(name, str(error))
            return
        if not self.reductions:
            self._keep(name, Weights(_owned(call), backend, *arguments.leading))
            return
        answers = backends.run(backend, call, self.reductions, need_output=False).answers
        known = zip(self.reductions, answers, strict=True)
        self._keep(name, Answers.of(Weights(call, backend, *arguments.leading, known), self.reductions))

    def _wanted(self, name: str) -> bool:
        number = self.seen._number(name)
        return self.layers is None or any(
            number == layer if isinstance(layer, int) else matches(name, layer) for layer in self.layers
        )

    def _keep(self, name: str, weights: Weights) -> None:
        self.seen._calls.setdefault(name, Series()).append(weights)


def _owned(call: Call) -> Call:
    """The call with copies of the tensors that may be written to after it, such as those of a static cache.

    A tensor written to before is likely to be written to again, and under inference mode writes leave no trace.
    """
    query, key, value = (
        x.clone() if x.is_inference() or x._version else x for x in (call.query, call.key, call.value)
    )
    return replace(call, query=query, key=key, value=value)
