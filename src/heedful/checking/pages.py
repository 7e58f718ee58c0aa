"""Writes the pages about mistakes, one per family: `python -m heedful.checking.pages docs/check`."""

import sys
import textwrap
from pathlib import Path

from heedful.checking.catalogue import Family, Mistake, families
from heedful.checking.excerpts import wrong_code
from heedful.checking.pictures import picture

COMMAND = "python -m heedful.checking.pages docs/check"
POST = """
The post this project grows out of warns of a missing softmax, and shows an example. Here it is again with the
numbers that it really prints. The post's correct version divides by 8.0, the size of its heads, where the formula
asks for the square root of it; `heedful check` says so, too.

```python
import torch
from heedful.checking import check

torch.manual_seed(0)
Q, K, V = torch.randn(2, 4, 8), torch.randn(2, 4, 8), torch.randn(2, 4, 8)


def without_softmax(Q, K, V):
    return Q @ K.mT @ V


def divided_by_eight(Q, K, V):
    return (Q @ K.mT / 8.0).softmax(-1) @ V


def right(Q, K, V):
    return (Q @ K.mT / 8**0.5).softmax(-1) @ V


for target in (without_softmax, divided_by_eight, right):
    found = check(target)
    print(f"{target.__name__:<18}output std {target(Q, K, V).std():.2f}: {found.verdict}")
    for mistake in found.mistakes:
        print(f"    {mistake.description}")
```

```text
without_softmax   output std 4.54: wrong
    there is no softmax: the scores themselves weigh the values, and rows don't sum to 1
    scores are not scaled; expected division by 2.83 = sqrt(head_dim)
divided_by_eight  output std 0.35: wrong
    scores are divided by 8.00 = head_dim; expected 2.83 = sqrt(head_dim)
right             output std 0.39: right
```
"""
OPENINGS = {"softmax": POST}


def page(family: Family) -> str:
    """One family: what is right, and every way to get it wrong."""
    opening = OPENINGS.get(family.name, "").strip("\n")
    parts = [
        f"# {family.title}",
        f"<!-- Generated from src/heedful/checking/catalogue by `{COMMAND}`; edit it there. -->",
        family.about,
        opening,
        *(section(entry) for entry in family.mistakes),
    ]
    return "\n\n".join(wrapped(p) for p in parts if p) + "\n"


def section(entry: Mistake) -> str:
    """One entry: what happens, a picture, the wrong code, the remedy, who met it."""
    also = f"Also known as: {', '.join(entry.also)}.\n\n" if entry.also else ""
    kind = "A hazard: right on ordinary inputs.\n\n" if entry.hazard else ""
    drawn = picture(entry)
    shown = "```\n" + "\n".join(drawn) + "\n```\n\n" if drawn else ""
    code = wrong_code(entry)
    excerpt = f"```py\n{code}\n```\n\n" if code else ""
    facts = f"- **Shows on:** {entry.shows}.\n- **Instead:** {entry.remedy}.\n- **Met in:** {entry.source}."
    return f"## {entry.name}\n\n{also}{kind}{entry.explanation}\n\n{excerpt}{shown}{facts}"


def wrapped(text: str) -> str:
    """Paragraphs of at most 110 characters; code, lists and headings stay as they are."""
    if text.startswith(("#", "<!--")) or "```" in text or "\n- " in text:
        return text
    return textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False)


def write(folder: Path) -> list[Path]:
    """Write all pages, and say where."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for family in families():
        path = folder / f"{family.name}.md"
        path.write_text(page(family), encoding="utf-8")
        written.append(path)
    return written


if __name__ == "__main__":
    for path in write(Path(sys.argv[1])):
        print(path)
