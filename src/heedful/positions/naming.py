"""Arguments that must be named, with a message for who did not name them."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Made = TypeVar("Made", bound=type)


def by_name(hint: str) -> Callable[[Made], Made]:
    """A class decorator: an argument without its name is an error that ends with `hint`."""

    def decorate(made: Made) -> Made:
        start: Callable[..., None] = made.__init__

        @wraps(start)
        def __init__(self: Any, *unnamed: Any, **named: Any) -> None:
            if unnamed:
                given = ", ".join(map(repr, unnamed))
                raise TypeError(
                    f"{made.__name__} takes its arguments by name, got {given} without one. {hint}"
                )
            start(self, **named)

        made.__init__ = __init__
        return made

    return decorate
