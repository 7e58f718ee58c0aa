"""`heedful check --list` and `--explain`: the catalogue, to read."""

import json
import re
import textwrap

from heedful.checking.catalogue import families, find, mistakes
from heedful.checking.catalogue.entry import Mistake

WIDTH = 100


def show_list(as_json: bool = False) -> None:
    """Print every entry, by family."""
    if as_json:
        print(json.dumps([as_dict(m) for m in mistakes()], indent=2))
        return
    for family in families():
        print(family.title)
        for entry in family.mistakes:
            mark = "hazard  " if entry.hazard else ""
            print(f"  {entry.name:<36}{mark}{short(entry)}")
        print()
    print("`heedful check --explain NAME` teaches one of them.")


def as_dict(entry: Mistake) -> dict[str, object]:
    """The entry without its code."""
    names = ("name", "family", "hazard", "explanation", "remedy", "source", "shows")
    return {**{name: getattr(entry, name) for name in names}, "also": list(entry.also)}


def short(entry: Mistake) -> str:
    """What a target does that makes this mistake, without the numbers."""
    return entry.summary or re.split(r"[;:]", entry.says)[0]


def show_mistake(name: str) -> int:
    """Print one entry; 2 when there is none of that name."""
    try:
        entry = find(name)
    except KeyError as error:
        print(error.args[0])
        return 2
    print(lesson(entry))
    return 0


def lesson(entry: Mistake) -> str:
    """What it is, a picture, when it shows, what to write instead, who met it."""
    from heedful.checking.excerpts import wrong_code
    from heedful.checking.pictures import picture

    title = f"{entry.name} ({'hazard' if entry.hazard else 'mistake'}, {entry.family})"
    also = f"also: {', '.join(entry.also)}" if entry.also else ""
    drawn = "\n".join(f"    {line}" for line in picture(entry))
    parts = [
        title + (f"\n{also}" if also else ""),
        textwrap.fill(" ".join(entry.explanation.split()), WIDTH),
        textwrap.indent(wrong_code(entry), "    "),
        drawn,
        "\n".join(
            [
                labeled("shows on", entry.shows),
                labeled("instead", entry.remedy),
                labeled("met in", entry.source),
            ]
        ),
    ]
    return "\n\n".join(p for p in parts if p)


def labeled(label: str, text: str) -> str:
    """A label and its text, wrapped under itself."""
    return textwrap.fill(f"{label + ':':<10}{text}", WIDTH, subsequent_indent=" " * 10)
