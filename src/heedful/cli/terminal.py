"""What commands share: numbers as options, reading the text, and writing where the reader may leave early."""

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.text import Text

NARROWEST = 40


def whole_number(value: str) -> int:
    """The number that an option such as `--layer 3` gives."""
    if not (value.isascii() and value.isdecimal()):
        raise typer.BadParameter(f"{value!r} is not a whole number from 0 up.")
    return int(value)


def columns(value: str) -> int:
    """The number that `--width 100` gives."""
    if whole_number(value) < NARROWEST:
        raise typer.BadParameter(f"{value} is too narrow; {NARROWEST} columns or more.")
    return int(value)


def text_from(argument: str) -> str:
    """The text of an argument, or of standard input if it is "-".

    Raises:
        typer.BadParameter: It is empty, or not text.
    """
    try:
        text = sys.stdin.read().rstrip("\n") if argument == "-" else argument
        text.encode()
    except UnicodeError:
        raise typer.BadParameter("that is not text in UTF-8.", param_hint="'TEXT'") from None
    if not text.strip():
        raise typer.BadParameter(
            'it is empty. Give a sentence, in quotes: "The cat sat."', param_hint="'TEXT'"
        )
    return text


def write(text: str) -> None:
    """Write to standard output; a reader that has seen enough, such as `head`, is no error."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output once more when it exits; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_lines(lines: Sequence["Text | str"]) -> None:
    """Write lines, in color where the terminal has it and NO_COLOR does not forbid it."""
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        for line in lines:
            console.print(line, soft_wrap=True)
    write(captured.get())


def terminal_width() -> int:
    """Columns of the terminal, 80 where there is none."""
    from rich.console import Console

    return max(NARROWEST, Console(file=sys.stdout).width)


@contextmanager
def working(what: str) -> Generator[None]:
    """Say on the terminal what takes a moment, and wipe it out when it is done."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield
