"""While something listens, torch's attention functions tell it of every call in its thread.

`F.scaled_dot_product_attention` and `F.multi_head_attention_forward` are replaced while at least one listener is open
anywhere, and put back when the last one closes. In a thread without a listener they only hand on.
"""

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any, NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from .._attention import scaled_dot_product_attention
from .._listeners import Listener, listeners, listening
from .arguments import Arguments, of_function


class TorchListener(Listener, Protocol):
    """Told of torch's attention functions too."""

    def edits(self, frame: FrameType) -> bool:
        """Whether it changes the weights of the module that is running."""
        ...

    def heard(self, frame: FrameType, arguments: Arguments | None, why_not: str) -> None:
        """Told of a call that has run, or why it cannot be told."""
        ...


class Handed(NamedTuple):
    """What a Hugging Face model handed over, before its heads were packed or its keys repeated for torch."""

    query: Tensor
    key: Tensor
    value: Tensor


class _Thread(threading.local):
    quiet: bool = False
    handed: Handed | None = None


this_thread = _Thread()


@contextmanager
def quiet() -> Iterator[None]:
    """Operators that run in this block belong to a call that is told of already."""
    before, this_thread.quiet = this_thread.quiet, True
    try:
        yield
    finally:
        this_thread.quiet = before


def _torch_listeners() -> tuple[TorchListener, ...]:
    return tuple(cast(TorchListener, each) for each in listeners() if hasattr(each, "heard"))


def _attention(*args: Any, **kwargs: Any) -> Tensor:
    present = () if torch.compiler.is_compiling() or this_thread.quiet else _torch_listeners()
    original = _originals["scaled_dot_product_attention"]
    if not present:
        return original(*args, **kwargs)
    frame = sys._getframe(1)
    if any(listener.edits(frame) for listener in present):
        given = of_function(*args, **kwargs)
        output, _ = scaled_dot_product_attention(**_as_handed(given)._asdict())
        output = output.view(*given.query.shape[:-1], output.shape[-1])
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        return output[0] if all(x.dim() < 3 for x in tensors) else output
    with quiet():
        output = original(*args, **kwargs)
    arguments, why_not = None, ""
    try:
        arguments = _as_handed(of_function(*args, **kwargs))
    except NotImplementedError as error:
        why_not = str(error)
    with quiet():
        for listener in present:
            listener.heard(frame, arguments, why_not)
    return output


def _as_handed(given: Arguments) -> Arguments:
    """The arguments with heads as the model has them, where transformers packed or repeated them for torch."""
    handed = this_thread.handed
    if handed is None:
        return given
    B, H, L, _ = handed.query.shape

    def unpacked(x: Any) -> Any:
        per_head = isinstance(x, Tensor) and x.dim() == 4 and x.shape[1] > 1
        return x.reshape(B, H, L, -1) if per_head else x

    if given.query.shape[1] != H:
        mask, bias = unpacked(given.mask), unpacked(given.attn_bias)
        given = given._replace(query=handed.query, mask=mask, attn_bias=bias)
    if given.key.shape[1] != handed.key.shape[1]:
        S = given.key.shape[2]
        given = given._replace(key=handed.key[:, :, :S], value=handed.value[:, :, :S])
    return given


def _multi_head_attention(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    original = _originals["multi_head_attention_forward"]
    present = () if torch.compiler.is_compiling() or this_thread.quiet else _torch_listeners()
    bound = _signature.bind(*args, **kwargs)
    bound.apply_defaults()
    if not present or not bound.arguments["need_weights"]:
        return original(*args, **kwargs)
    # With need_weights it takes a softmax of its own; without, it calls the function above with the same numbers.
    bound.arguments["need_weights"] = False
    if any(listener.edits(sys._getframe(1)) for listener in present):
        last = _Last()
        with listening(last):
            output, _ = original(*bound.args, **bound.kwargs)
        matrix = last.weights.full(output.dtype)
        matrix = matrix.mean(1) if bound.arguments["average_attn_weights"] else matrix
        return output, matrix if bound.arguments["query"].dim() == 3 else matrix[0]
    with quiet():
        answer = original(*args, **kwargs)
    bound.arguments["dropout_p"] = 0.0
    original(*bound.args, **bound.kwargs)
    return answer


class _Last:
    """Keeps the weights of the last call."""

    weights: Any = None

    def before(self, call: Any, reductions: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        return call, reductions

    def after(self, weights: Any) -> None:
        self.weights = weights


_signature = inspect.signature(F.multi_head_attention_forward)
_replacements: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": _attention,
    "multi_head_attention_forward": _multi_head_attention,
}
_originals: dict[str, Callable[..., Any]] = {}
_lock = threading.Lock()
_open = 0


@contextmanager
def told() -> Iterator[None]:
    """While this block is open, torch's attention functions tell the listeners of their thread.

    Compiled code would not come by here, so torch runs it uncompiled meanwhile, where anything was compiled at all.
    """
    global _open
    with _lock:
        _open += 1
        if _open == 1:
            _replace()
    compiles = "torch._dynamo" in sys.modules
    try:
        with torch.compiler.set_stance("force_eager") if compiles else nullcontext():
            yield
    finally:
        with _lock:
            _open -= 1
            if _open == 0:
                _put_back()


def _replace() -> None:
    for name, replacement in _replacements.items():
        _originals[name] = getattr(F, name)
        setattr(F, name, replacement)
    if "transformers" in sys.modules:
        from .. import huggingface

        huggingface.hand_over(this_thread)


def _put_back() -> None:
    for name, replacement in _replacements.items():
        if getattr(F, name) is replacement:
            setattr(F, name, _originals[name])
    if "transformers" in sys.modules:
        from .. import huggingface

        huggingface.hand_over(None)
