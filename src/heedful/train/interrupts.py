"""Ctrl-C between two updates instead of in the middle of one."""

import signal
from types import FrameType, TracebackType


class Interrupts:
    """While it is entered, the first Ctrl-C or SIGTERM is only noted; a second one ends the program at once.

    Attributes:
        received: The signal, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before = {}

    def __enter__(self) -> "Interrupts":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
