"""Who wants to know of every attention call in this thread: `heedful.watch` and `heedful.edit` while they are open."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch


class Listener(Protocol):
    """Told of every call of `heedful.scaled_dot_product_attention` in its thread."""

    def before(self, call: Any, reductions: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """The call and the reductions that shall run instead: the same, or more edits and more reductions."""
        ...

    def after(self, weights: Any) -> None:
        """Given the weights of a call that has run."""
        ...


class _Thread(threading.local):
    listeners: tuple[Listener, ...] = ()


_thread = _Thread()


def listeners() -> tuple[Listener, ...]:
    """The listeners of this thread, the first opened first; none while torch compiles."""
    return () if torch.compiler.is_compiling() else _thread.listeners


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Add a listener to this thread, until the block is left."""
    before = _thread.listeners
    _thread.listeners = (*before, listener)
    try:
        yield
    finally:
        _thread.listeners = tuple(each for each in _thread.listeners if each is not listener)
