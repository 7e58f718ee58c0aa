"""The text itself, with the chosen token's weights above it."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from heedful.view.page import Page, shade_of
from heedful.view.text import lines_of_tokens

MOST_LINES = 8


def sentence(page: Page) -> list[Text]:
    """The text, and above each token a column as high as the chosen token's weight on it."""
    picture, query = page.picture, page.picture.choice.query
    pieces = [
        " " if token.text == " " else piece for token, piece in zip(picture.tokens, page.pieces, strict=True)
    ]
    laid = lines_of_tokens(picture.tokens, pieces, page.width - 2, page.glyphs.cut)
    shown = _lines_that_matter(page, [{token for token, _, _ in line} for line in laid])
    lines = [Text.assemble("What ", (page.quoted(query), "bold"), " looks at")]
    skipped = 0
    for number, line in enumerate(laid):
        if number not in shown:
            skipped += 1
            continue
        lines += _skipped(page, skipped)
        skipped = 0
        lines += _line_of_text(page, line)
    return lines + _skipped(page, skipped)


def _lines_that_matter(page: Page, laid: Sequence[set[int]]) -> set[int]:
    """All lines of a short text; of a long one those with the chosen token and with what it looks at most."""
    if len(laid) <= MOST_LINES:
        return set(range(len(laid)))
    picture = page.picture
    row = picture.rows[picture.choice.query]
    wanted = [row.query, *(link.key for link in row.links if link.weight >= 0.02)]
    numbers = [number for token in wanted for number, line in enumerate(laid) if token in line]
    return set(list(dict.fromkeys(numbers))[:MOST_LINES])


def _skipped(page: Page, count: int) -> list[Text]:
    if not count:
        return []
    lines = "1 line" if count == 1 else f"{count} lines"
    return [Text(f"  {page.glyphs.cut} {lines} {page.glyphs.cut}", style="dim")]


def _line_of_text(page: Page, line: Sequence[tuple[int, int, str]]) -> list[Text]:
    """One line of the text, with the columns above it and the chosen token marked below."""
    query = page.picture.choice.query
    above, text, below = Text("  "), Text("  "), Text("  ")
    for token, column, label in line:
        weight, cells = page.picture.looks_at[token], cell_len(label)
        for part in (above, text, below):
            part.append(" " * (column + 2 - part.cell_len))
        above.append(page.glyphs.height(weight) * cells, style=shade_of(weight))
        text.append(label, style="bold" if token == query else shade_of(weight) if weight >= 0.3 else "")
        below.append(("^" if token == query else " ") * cells)
    return [part for part in (above, text, below) if part.plain.strip()]
