"""What each token looks at in the chosen head: a map of all weights if it fits, else the strongest links in words."""

from rich.cells import cell_len
from rich.text import Text

from heedful.view.page import Page, shade_of
from heedful.view.picture import Row
from heedful.view.text import fit

MOST_ROWS = 40
FEW_ROWS = 20
WIDEST_LABEL = 12
LINKS_IN_WORDS = 4


def rows_of_weights(page: Page) -> list[Text]:
    """One line for each token: its weights as shades, and its strongest link in words."""
    picture, length = page.picture, len(page.labels)
    number = len(str(length - 1))
    label = min(WIDEST_LABEL, max(map(cell_len, page.labels)))
    margin = number + label + 3
    in_words = cell_len(page.glyphs.arrow) + label + 7
    sizes = [(2, in_words), (1, in_words), (2, 0), (1, 0)]
    fits = [(cell, words) for cell, words in sizes if margin + cell * length + words <= page.width]
    heading = "What each token looks at"
    if picture.matrix is None or length > MOST_ROWS or not fits:
        return [Text(heading), *_in_words(page, number, label)]
    cell, words = fits[0]
    ticks = "".join(str(i).ljust(5 * cell) for i in range(0, length, 5))
    lines = [Text(heading), _legend(page, cell), Text(" " * margin + ticks.rstrip(), style="dim")]
    for row, weights in zip(picture.rows, picture.matrix, strict=True):
        line = _margin(page, row.query, number, label)
        for weight in weights:
            line.append(page.glyphs.shade(weight) * cell, style=shade_of(weight))
        if words and row.links:
            link = row.links[0]
            line.append(
                f" {page.glyphs.arrow} {fit(page.labels[link.key], label, page.glyphs.cut)} {link.weight:.2f}"
            )
        lines.append(line)
    return lines


def _legend(page: Page, cell: int) -> Text:
    """The least weight that each shade stands for; without words on a narrow page, where it takes 39 cells."""
    levels = [(sign * cell, weight) for sign, weight in page.glyphs.shades_from() if weight > 0]
    line = Text(" ").join(Text(f"{sign} {weight:.2f}", style=shade_of(weight)) for sign, weight in levels)
    words = Text("Weight at least: ")
    return words.append_text(line) if words.cell_len + line.cell_len <= page.width else line


def _margin(page: Page, token: int, number: int, label: int) -> Text:
    style = "bold" if token == page.picture.choice.query else ""
    return Text.assemble(
        (f"{token:>{number}} ", "dim"), (fit(page.labels[token], label, page.glyphs.cut), style), "  "
    )


def _in_words(page: Page, number: int, label: int) -> list[Text]:
    rows = page.picture.rows
    shown = rows if len(rows) <= MOST_ROWS else _most_telling(page)
    lines = []
    others = f" {page.glyphs.dot} others 0.00"
    for row in shown:
        line = _margin(page, row.query, number, label)
        rest = 1.0
        between = ""
        for link in row.links[:LINKS_IN_WORDS]:
            item = f"{between}{page.named(link.key, label)} {link.weight:.2f}"
            if link.weight < 0.05 or line.cell_len + cell_len(item + others) > page.width:
                break
            line.append(item)
            rest -= link.weight
            between = f" {page.glyphs.dot} "
        if rest >= 0.005:
            line.append(f"{between}others {rest:.2f}", style="dim")
        lines.append(line)
    if len(shown) < len(rows):
        lines.append(
            Text(f"{len(rows) - len(shown)} more tokens look less clearly at another word.", style="dim")
        )
    return lines


def _most_telling(page: Page) -> list[Row]:
    """The rows with the strongest links to another token that is not special, in the order of the text."""
    picture = page.picture

    def strongest(row: Row) -> float:
        links = [
            link.weight
            for link in row.links
            if link.key != row.query and not picture.tokens[link.key].special
        ]
        return max(links, default=0.0) + (row.query == picture.choice.query)

    return sorted(sorted(picture.rows, key=strongest, reverse=True)[:FEW_ROWS], key=lambda row: row.query)
