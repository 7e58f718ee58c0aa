"""Text for a terminal: any token made printable, and measured in terminal cells rather than characters."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from heedful.models.reading import Token

_JOINER = "\u200d"
_SPACES = {"\n": "\u23ce", "\t": "\u21e5", " ": "\u2420"}
_WRAPPER = Console(width=80)


@dataclass(frozen=True)
class Glyphs:
    """The signs that carry magnitudes, from nothing to 1, and a few others."""

    heights: str = " ▁▂▃▄▅▆▇█"
    shades: str = " ·░▒▓█"
    bar: str = "█"
    bar_ends: str = "▏▎▍▌▋▊▉"
    arrow: str = "→"
    times: str = "×"  # noqa: RUF001 - the sign that is meant
    dot: str = "·"
    chosen: str = "▸"
    cut: str = "…"

    def height(self, weight: float) -> str:
        """A column whose height grows with the square root of a weight, so that small ones show."""
        return _level(self.heights, weight)

    def shade(self, weight: float) -> str:
        """A shade that grows with the square root of a weight."""
        return _level(self.shades, weight)

    def shades_from(self) -> list[tuple[str, float]]:
        """Each shade, and the least weight that it stands for."""
        steps = len(self.shades) - 1
        return [(sign, (max(level - 0.5, 0) / steps) ** 2) for level, sign in enumerate(self.shades)]

    def length(self, weight: float, width: int) -> str:
        """A bar whose length is proportional to a weight; `width` cells for 1."""
        eighths = round(min(max(weight, 0.0), 1.0) * width * 8)
        whole, part = divmod(eighths, 8)
        return self.bar * whole + (self.bar_ends[part - 1] if part and self.bar_ends else "")


UNICODE = Glyphs()
ASCII = Glyphs(" .:-=+*#@", " .:+#@", "#", "", "->", "x", "|", ">", "~")


def _level(scale: str, weight: float) -> str:
    return scale[round(min(max(weight, 0.0), 1.0) ** 0.5 * (len(scale) - 1))]


def glyphs_for(encoding: str) -> Glyphs:
    """The block glyphs if the encoding has them, else ASCII."""
    everything = "".join(str(value) for value in vars(UNICODE).values())
    return UNICODE if _has(encoding, everything) else ASCII


def _has(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def printable(text: str, encoding: str) -> str:
    """A token as it can be printed: no controls, nothing invisible, nothing that the encoding lacks.

    Such characters become Python escapes, white space becomes signs for it, and a combining mark at the start, which
    would join what is printed before it, gets a carrier.
    """
    shown = "".join(_printable_character(character, encoding) for character in text.strip(" ") or text)
    if shown and unicodedata.category(shown[0])[0] == "M":
        shown = _sign("\u25cc", encoding) + shown
    if shown.startswith(_JOINER) or shown.endswith(_JOINER) or not cell_len(shown):
        shown = _escaped(shown)
    return shown or "''"


def _printable_character(character: str, encoding: str) -> str:
    if character in _SPACES:
        return _sign(_SPACES[character], encoding, character)
    visible = unicodedata.category(character)[0] not in "CZ" or character == _JOINER
    return _sign(character, encoding) if visible else _escaped(character)


def _sign(sign: str, encoding: str, otherwise: str = "") -> str:
    return sign if _has(encoding, sign) else _escaped(otherwise or sign)


def _escaped(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii").replace(" ", r"\x20")


def fit(text: str, width: int, cut: str) -> str:
    """The text in exactly `width` cells: padded, or cut with a sign that says so."""
    if cell_len(text) > width:
        text = set_cell_size(text, max(0, width - cell_len(cut))) + cut
    return set_cell_size(text, width)


def paragraph(text: Text, width: int) -> list[Text]:
    """The text broken at white space into lines of at most `width` cells."""
    return list(text.wrap(_WRAPPER, width, overflow="fold", no_wrap=False))


def flow(items: Sequence[Text], width: int, gap: int = 2) -> list[Text]:
    """The items side by side, with `gap` spaces between them, on as many lines as they need; each fits on one."""
    lines: list[Text] = []
    for item in items:
        if lines and lines[-1].cell_len + gap + item.cell_len <= width:
            lines[-1].append(" " * gap).append_text(item)
        else:
            lines.append(Text().append_text(item))
    return lines


def lines_of_tokens(
    tokens: Sequence[Token], labels: Sequence[str], width: int, cut: str
) -> list[list[tuple[int, int, str]]]:
    """Set the tokens as text.

    Returns:
        Lines of (token number, column, label). A word is broken only if it does not fit on a line of its own; spaces
        are where the text has white space, and around special tokens. A label " " is such a space itself.
    """
    lines: list[list[tuple[int, int, str]]] = [[]]
    column = 0
    for word in _words(tokens):
        length = sum(min(cell_len(labels[i]), width) for i in word)
        gap = int(column > 0 and labels[word[0] - 1] != " ")
        if column and column + gap + length > width:
            lines.append([])
            column = gap = 0
        column += gap
        for i in word:
            label = fit(labels[i], min(cell_len(labels[i]), width), cut)
            if column + cell_len(label) > width:
                lines.append([])
                column = 0
            lines[-1].append((i, column, label))
            column += cell_len(label)
    return lines


def _words(tokens: Sequence[Token]) -> list[list[int]]:
    """Numbers of the tokens that stand without white space between them."""
    words: list[list[int]] = []
    for i, token in enumerate(tokens):
        if i == 0 or _apart(tokens[i - 1], token):
            words.append([])
        words[-1].append(i)
    return words


def _apart(before: Token, token: Token) -> bool:
    """Whether white space stands between two tokens, or at the end of the first or the start of the second."""
    if token.special or before.special or token.start > before.stop or before.text.isspace():
        return True
    return token.text[:1].isspace() and not token.text.isspace()
