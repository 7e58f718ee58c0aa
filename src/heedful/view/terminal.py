"""A picture as lines of text. Magnitude lives in the signs; color only repeats it."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from heedful.heads import CLASSES, NEAR
from heedful.view.page import Page
from heedful.view.picture import HeadSummary, Picture
from heedful.view.rows import rows_of_weights
from heedful.view.sentence import sentence
from heedful.view.text import UNICODE, Glyphs, fit, flow, paragraph

NARROWEST = 40
FAINT = "bright_black"
COLORS = {
    "P": "blue",
    "N": "cyan",
    "T": "magenta",
    "U": "yellow",
    "D": "red",
    "I": "bright_red",
    "L": "green",
    "S": FAINT,
    "B": FAINT,
}

PLACE_NAMES = {
    "self": "the token itself",
    "first": "the first token",
    "previous": "the token before",
    "next": "the token after",
    "special": "other special tokens and punctuation",
    "same": "the same token elsewhere",
    "near": f"others within {NEAR} tokens",
    "far": "tokens farther away",
}


def draw(picture: Picture, width: int = 80, glyphs: Glyphs = UNICODE, encoding: str = "utf-8") -> list[Text]:
    """Draw a picture.

    Args:
        picture: What to draw.
        width: Cells that a line may take; less than 40 counts as 40.
        glyphs: The signs for magnitudes.
        encoding: Characters that it lacks are shown as escapes.

    Returns:
        The lines, none of them wider than `width`.
    """
    page = Page(picture, max(width, NARROWEST), glyphs, encoding)
    sections = [
        title(page),
        grid(page),
        legend(page),
        chosen_head(page),
        rows_of_weights(page),
        sentence(page),
    ]
    sections += [token_lists(page)] if picture.choice.token_given else [strongest_links(page)]
    sections += [expected(page)] if picture.following else []
    lines = []
    for section in sections:
        lines += section if not lines or not section else [Text(), *section]
    for line in lines:
        line.rstrip()
    return lines


def title(page: Page) -> list[Text]:
    """The model, its size, the text's length, and what the numbers are."""
    layers, heads = len(page.picture.heads), len(page.picture.heads[0])
    facts = [
        f"{_count(layers, 'layer')} {page.glyphs.times} {_count(heads, 'head')}",
        _count(len(page.labels), "token"),
        *(["causal"] if page.picture.causal else []),
        "attention weights",
    ]
    lines = flow([Text(page.picture.model, style="bold"), *map(Text, facts)], page.width, gap=3)
    if page.picture.sink_set_aside:
        told = "The first token is set aside: its weight is shared out among the others."
        lines += paragraph(Text(told), page.width)
    return lines


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def grid(page: Page) -> list[Text]:
    """Layers down, heads across; each cell is a letter for where the head looks and a column for its entropy."""
    num_heads = len(page.picture.heads[0])
    name = "layer {}" if page.width >= 60 else "L{}"
    margin = len(name.format(len(page.picture.heads) - 1)) + 1
    per_line = min(num_heads, (page.width - margin) // 3)
    lines = []
    for start in range(0, num_heads, per_line):
        numbers = range(start, min(start + per_line, num_heads))
        lines += [Text()] if lines else []
        lines.append(Text(" " * margin + "".join(f"{n:>3}"[-3:] for n in numbers), style="dim"))
        for layer, heads in enumerate(page.picture.heads):
            line = Text(name.format(layer).ljust(margin), style="dim")
            line.append_text(Text.assemble(*(_cell(page, heads[n]) for n in numbers)))
            lines.append(line)
    return lines


def _cell(page: Page, head: HeadSummary) -> Text:
    chosen = head is page.picture.summary
    steps = len(page.glyphs.heights) - 1
    height = page.glyphs.heights[max(1, round(head.entropy * steps))]
    mark, style = (page.glyphs.chosen, "bold reverse") if chosen else (" ", "")
    return Text.assemble((mark + head.letter + height, f"not dim {style} {_color(head.letter)}"))


def _color(letter: str) -> str:
    return COLORS.get(letter, "default")


def legend(page: Page) -> list[Text]:
    """What the letters that occur and the columns mean."""
    present = {head.label for heads in page.picture.heads for head in heads}
    low, high = page.glyphs.heights[1], page.glyphs.heights[-1]
    items = [
        Text(letter, style=f"bold {_color(letter)}").append(f" {label}", style="not bold default")
        for label, (letter, _) in CLASSES.items()
        if label in present
    ]
    items.append(Text(f"{low} at one token to {high} at all alike"))
    if any(token.continues for token in page.picture.tokens) and not page.by_character:
        items.append(Text("## continues a word"))
    return flow(items, page.width)


def chosen_head(page: Page) -> list[Text]:
    """The chosen head, marked as in the grid, in words: where it looks, its class, and why this head."""
    choice, head = page.picture.choice, page.picture.summary
    (place, share), *others = sorted(page.picture.places.items(), key=lambda item: -item[1])[:4]
    gives = [f"{share:.2f} of its weight to {PLACE_NAMES[place]}"]
    gives += [f"{share:.2f} to {PLACE_NAMES[place]}" for place, share in others if share >= 0.05]
    entropy = f"Its entropy is {head.entropy:.2f} of the largest possible."
    line = Text.assemble(
        (f"{page.glyphs.chosen} Layer {choice.layer}, head {choice.head}", "bold"),
        f" gives {', '.join(gives)}. {entropy}",
    )
    return [
        part
        for text in (line, Text(_class(head)), Text(_reason(page)))
        for part in paragraph(text, page.width)
    ]


def _class(head: HeadSummary) -> str:
    """The class of a head with what speaks for it."""
    name = f"On this text its class is {head.letter}, {head.label}"
    if head.label == "mixed":
        return f"{name}: nothing that has a class of its own stands out."
    if head.label == "broad":
        return f"{name}: {CLASSES[head.label][1]}."
    tokens = "1 token that has one" if head.support == 1 else f"{head.support} tokens that have one"
    return (
        f"{name}: {head.score:.2f} of the weight, {head.chance:.2f} by chance, over the {tokens} to look at."
    )


def _reason(page: Page) -> str:
    picture, choice = page.picture, page.picture.choice
    num_layers, num_heads = len(picture.heads), len(picture.heads[0])
    link = f"{page.quoted(choice.link.query)} {page.glyphs.arrow} {page.quoted(choice.link.key)}"
    what = f"the most telling link {'from this token' if choice.token_given else 'between ' + choice.kind}"
    if choice.layer_given and choice.head_given:
        return f"Here {what} is {link}."
    if choice.layer_given:
        among = f"the {num_heads} heads of layer {choice.layer}"
    elif choice.head_given:
        among = f"head {choice.head} of each of the {num_layers} layers"
    else:
        among = f"all {num_layers * num_heads} heads"
    return f"Chosen from {among} for {what}: {link}."


def strongest_links(page: Page) -> list[Text]:
    """The chosen head's strongest links, written out, if any is above even weights."""
    if not page.picture.links:
        return []
    links, arrow = page.picture.links, page.glyphs.arrow
    heading = Text("Strongest links of this head between " + page.picture.choice.kind)
    return paragraph(heading, page.width) + _bars(
        page, [(f"{page.quoted(link.query)} {arrow} {page.quoted(link.key)}", link.weight) for link in links]
    )


def token_lists(page: Page) -> list[Text]:
    """What the chosen token looks at, and what looks at it."""
    picture, query = page.picture, page.picture.choice.query
    row = picture.rows[query]
    looks_at = [(page.quoted(link.key), link.weight) for link in row.links if link.weight >= 0.005]
    hidden = row.others + len(row.links) - len(looks_at)
    if hidden:
        name = "1 other" if hidden == 1 else f"{hidden} others"
        looks_at.append((name, max(0.0, 1 - sum(weight for _, weight in looks_at))))
    seers = sorted(enumerate(picture.seen_by), key=lambda item: -item[1])[: len(row.links)]
    seen_by = [(page.quoted(token), weight) for token, weight in seers if weight >= 0.005]
    lines = _bars(page, looks_at)
    return [
        *lines,
        Text(),
        Text.assemble("What looks at ", (page.quoted(query), "bold")),
        *_bars(page, seen_by),
    ]


def expected(page: Page) -> list[Text]:
    """What the model expects after the text."""
    heading = Text(f"What follows the text, as {page.picture.model} expects it")
    following = [(page.spelled(each.text), each.probability) for each in page.picture.following]
    return paragraph(heading, page.width) + _bars(page, following)


def _bars(page: Page, items: Sequence[tuple[str, float]]) -> list[Text]:
    """One line for each item: its name, its weight, and a bar."""
    room = page.width - 10
    names = max((cell_len(name) for name, _ in items), default=0)
    names = min(names, room - 8)
    lines = []
    for name, weight in items:
        line = Text(f"  {fit(name, names, page.glyphs.cut)}  {weight:.3f} ")
        lines.append(line.append_text(page.bar(weight, min(40, room - names))))
    return lines
