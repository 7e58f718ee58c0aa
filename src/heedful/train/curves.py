"""Curves in the terminal, drawn with braille dots: two by four points in each character."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

COLORS = ("cyan", "yellow", "magenta", "green", "red", "blue")
# Bit of each dot, by row and column within the character.
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Curves:
    """Some curves over one pair of axes, as wide as the terminal allows. Rich prints it.

    Attributes:
        series: Points (x, y) of each curve, in the order of x, by its name.
        x: What the horizontal axis counts.
        height: Lines of text for the curves.
        width: Most columns, axis included.
    """

    series: Mapping[str, Points]
    x: str = "step"
    height: int = 10
    width: int = 78

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw for this console: with dots, or with plain characters where it has no others."""
        points = [point for series in self.series.values() for point in series]
        if not points:
            yield Text("(nothing to draw yet)")
            return
        xs, ys = [x for x, _ in points], [y for _, y in points]
        labels = [_short(max(ys)) if max(ys) > min(ys) else "", _short(min(ys))]
        margin = max(map(len, labels))
        columns = max(8, min(self.width, options.max_width) - margin - 2)
        canvas = _Canvas(columns, self.height, (min(xs), max(xs)), (min(ys), max(ys)))
        for number, series in enumerate(self.series.values()):
            canvas.draw(series, number)
        bar, corner, line = ("|", "+", "-") if options.ascii_only else ("│", "└", "─")
        for row, text in enumerate(canvas.rows(plain=options.ascii_only)):
            label = {0: labels[0], self.height - 1: labels[1]}.get(row, "")
            yield Text(f"{label:>{margin}} {bar}") + text
        yield Text(f"{'':{margin}} {corner}{line * columns}")
        first, last = f"{self.x} {_short(min(xs))}", _short(max(xs))
        yield Text(f"{'':{margin}}  {first}{last:>{columns - len(first)}}")
        if len(self.series) > 1:
            yield Text(" " * (margin + 2)) + self._legend(plain=options.ascii_only)

    def _legend(self, *, plain: bool) -> Text:
        names = [
            Text(f"{_mark(number) if plain else '━'} {name}", COLORS[number % len(COLORS)])
            for number, name in enumerate(self.series)
        ]
        return Text("   ").join(names)


class _Canvas:
    """Dots of several curves; a character takes the color of the last curve that touched it."""

    def __init__(self, columns: int, height: int, xs: tuple[float, float], ys: tuple[float, float]) -> None:
        self.columns, self.height, self.xs, self.ys = columns, height, xs, ys
        self.bits = [[0] * columns for _ in range(height)]
        self.owner = [[0] * columns for _ in range(height)]

    def draw(self, points: Points, number: int) -> None:
        """Join the points by lines of dots."""
        dots = [
            (self._place(x, self.xs, 2 * self.columns), self._place(y, self.ys, 4 * self.height))
            for x, y in points
        ]
        for (x0, y0), (x1, y1) in zip(dots, dots[1:] or dots, strict=False):
            steps = max(abs(x1 - x0), abs(y1 - y0), 1)
            for i in range(steps + 1):
                self._dot(round(x0 + (x1 - x0) * i / steps), round(y0 + (y1 - y0) * i / steps), number)

    def rows(self, *, plain: bool) -> Iterator[Text]:
        """The lines of text, from the top."""
        for bits, owners in zip(self.bits, self.owner, strict=True):
            text = Text()
            for bit, owner in zip(bits, owners, strict=True):
                character = (_mark(owner) if bit else " ") if plain else chr(0x2800 + bit)
                text.append(character, COLORS[owner % len(COLORS)] if bit else None)
            yield text

    def _dot(self, x: int, y: int, number: int) -> None:
        row, column = self.height - 1 - y // 4, x // 2
        self.bits[row][column] |= DOTS[3 - y % 4][x % 2]
        self.owner[row][column] = number

    @staticmethod
    def _place(value: float, bounds: tuple[float, float], size: int) -> int:
        low, high = bounds
        return 0 if high == low else round((value - low) / (high - low) * (size - 1))


def _mark(number: int) -> str:
    return "*o+x#@"[number % 6]


def _short(value: float) -> str:
    """A number in a few characters."""
    return f"{value:,.0f}" if value == round(value) else f"{value:.3g}"
