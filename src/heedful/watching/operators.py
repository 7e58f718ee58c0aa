"""What runs below Python: torch's fused operators and fast paths, and softmaxes that nobody else tells of.

A `TorchDispatchMode` sees every operator of its thread and changes none, so the output stays the same to the bit.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .arguments import Arguments, operators
from .torch_calls import this_thread

_SOFTMAX = ("_softmax", "_safe_softmax", "_masked_softmax", "softmax.int")
_PRODUCT = ("bmm", "matmul")


class OperatorMode(TorchDispatchMode):
    """Tells of every attention operator that runs while the mode is on, and of every softmax used as attention."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False saves the seconds of importing torch's compiler, which has no part in this: see `told`."""
        return False

    def __init__(
        self,
        heard: Callable[[FrameType, Arguments | None, str], None],
        running: Callable[[FrameType], str | None],
    ):
        super().__init__()
        self.heard = heard
        self.running = running
        self.readers = operators()
        # Sizes of the last softmax, and the module it ran in: attention is a softmax that then weighs values.
        self.softmax: tuple[str | None, int, int] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not this_thread.quiet:
            self._notice(func, args, kwargs, sys._getframe(1))
        return result

    def _notice(self, func: Any, args: tuple, kwargs: dict, frame: FrameType) -> None:
        name = func.name() if callable(getattr(func, "name", None)) else str(func)
        namespace, _, operator = name.rpartition("::")
        if func in self.readers:
            names = [argument.name for argument in func._schema.arguments]
            defaults = {argument.name: argument.default_value for argument in func._schema.arguments}
            self._tell(
                frame, self.readers[func], {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
            )
        elif operator in _SOFTMAX:
            x, dim = args[0], args[1] if len(args) > 1 and isinstance(args[1], int) else -1
            last = dim in (-1, x.dim() - 1) and x.dim() > 2
            self.softmax = (self.running(frame), x.shape[-1], x.numel()) if last else None
        elif self.softmax is not None and operator in _PRODUCT and isinstance(args[0], Tensor):
            module, width, size = self.softmax
            if args[0].shape[-1] == width and args[0].numel() == size and self.running(frame) == module:
                self.softmax = None
                self.heard(frame, None, "it takes a softmax of its own")
        elif namespace != "aten" and "att" in operator and "backward" not in operator:
            self.heard(frame, None, f"it runs {name}, which is not part of PyTorch's attention")

    def _tell(
        self, frame: FrameType, reader: Callable[[dict[str, Any]], Arguments], given: dict[str, Any]
    ) -> None:
        try:
            arguments = reader(given)
        except NotImplementedError as error:
            self.heard(frame, None, str(error))
        else:
            self.heard(frame, arguments, "")
