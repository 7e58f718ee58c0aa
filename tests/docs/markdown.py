"""Reads the code blocks of a Markdown page, with the output that the page shows for them.

A `python` block followed directly by a `text` block is a program and what it prints. All python blocks of a
page are one program, run from top to bottom. A `console` block holds commands, each after `$ `, and what each
prints; a line `...` there stands for lines left out.
"""

import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*\n?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, the line it starts on, and the output shown beneath it."""

    language: str
    text: str
    line: int
    shown: str | None


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, each `text` block attached to the `python` block right above it."""
    source = page.read_text()
    fences = list(FENCE.finditer(source))
    found = []
    for index, fence in enumerate(fences):
        language, text = fence.groups()
        shown = None
        if language == "python" and index + 1 < len(fences):
            after = fences[index + 1]
            if after.group(1) == "text" and not source[fence.end() : after.start()].strip():
                shown = after.group(2)
        found.append(Block(language, text, source[: fence.start()].count("\n") + 2, shown))
    return found


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a `console` block, each with the output shown for it."""
    parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
    return [(part.split("\n", 1)[0], part.split("\n", 1)[1]) for part in parts]


def matches(shown: str, printed: str) -> bool:
    """Whether a command printed what the page shows, where a line `...` stands for any lines."""
    kept = [re.escape(part) for part in re.split(r"^\.\.\.\n", shown, flags=re.MULTILINE)]
    return re.fullmatch("(?:.*\n)*?".join(kept), printed) is not None
