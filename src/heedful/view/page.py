"""What every part of a drawing shares: the picture, the width, the signs, and how tokens are written."""

from collections import Counter
from functools import cached_property

from rich.cells import cell_len
from rich.text import Text

from heedful.view.links import by_character
from heedful.view.picture import Picture
from heedful.view.text import Glyphs, fit, printable


class Page:
    """A picture, and the terminal that it is drawn for.

    Attributes:
        picture: What is drawn.
        width: Cells that a line may take.
        glyphs: The signs for magnitudes.
        labels: The tokens as they are printed.
        by_character: Whether tokens are single characters.
    """

    def __init__(self, picture: Picture, width: int, glyphs: Glyphs, encoding: str) -> None:
        self.picture, self.width, self.glyphs, self._encoding = picture, width, glyphs, encoding
        self.pieces = [printable(token.text, encoding) for token in picture.tokens]
        self.by_character = by_character(picture.tokens)
        self.labels = [
            f"##{piece}" if token.continues and not self.by_character else piece
            for piece, token in zip(self.pieces, picture.tokens, strict=True)
        ]

    @cached_property
    def _occurs(self) -> Counter[str]:
        return Counter(self.labels)

    def named(self, token: int, width: int, quote: str = "") -> str:
        """A token in at most `width` cells, with its number if others look the same."""
        number = f"({token})" if self._occurs[self.labels[token]] > 1 else ""
        room = width - 2 * len(quote) - len(number)
        label = self.labels[token]
        return (
            f"{quote}{fit(label, room, self.glyphs.cut) if cell_len(label) > room else label}{quote}{number}"
        )

    def quoted(self, token: int) -> str:
        """A token in a sentence."""
        return self.named(token, 24, quote='"')

    def spelled(self, text: str) -> str:
        """What a token of the vocabulary adds to a text, with its spaces."""
        words = text.strip(" ")
        before, after = (len(text) - len(part) for part in (text.lstrip(" "), text.rstrip(" ")))
        shown = (
            " " * before + printable(words, self._encoding) + " " * after
            if words
            else printable(text, self._encoding)
        )
        return f'"{shown}"'

    def bar(self, weight: float, width: int) -> Text:
        """A bar whose length is proportional to the weight."""
        return Text(self.glyphs.length(weight, width), style=shade_of(weight))


def shade_of(weight: float) -> str:
    """The color that repeats a weight's magnitude."""
    return "bold cyan" if weight >= 0.3 else "cyan" if weight >= 0.05 else "bright_black"
