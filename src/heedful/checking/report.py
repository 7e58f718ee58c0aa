"""Shows a diagnosis: as text, in colors, as HTML."""

import html
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from heedful.checking.diagnosis import UNCLEAR, Diagnosis, Finding

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

INDENT = 13
NARROWEST = 20  # columns for the words, however narrow the terminal
STYLES = {"right": "bold green", "wrong": "bold red", "could not tell": "bold yellow"}


def headline(found: Diagnosis) -> str:
    """The first line: the target, the verdict, how much of what."""
    if found.verdict == UNCLEAR:
        return f"{found.target}: could not tell"
    parts = [plural(len(found.mistakes), "mistake"), plural(len(found.hazards), "hazard")]
    if found.properties:
        parts.insert(0, "no known mistake fits" if not found.mistakes else "more is wrong than these explain")
    counts = ", ".join(p for p in parts if p)
    return f"{found.target} is {found.verdict}" + (f": {counts}" if counts else "")


def plural(count: int, noun: str) -> str:
    """`2 mistakes`; nothing for none."""
    return f"{count} {noun}{'s' if count > 1 else ''}" if count else ""


def lines_of(found: Diagnosis) -> list[tuple[str, str, str]]:
    """The report after its headline: (label, text, style) for each line."""
    lines: list[tuple[str, str, str]] = []
    for finding in found.mistakes:
        lines += finding_lines(finding.family, finding, "red")
    for index, words in enumerate(found.properties):
        lines.append(("property" if index == 0 else "", words, "red"))
    for finding in found.hazards:
        lines += finding_lines("hazard", finding, "yellow")
    return lines


def finding_lines(label: str, finding: Finding, style: str) -> list[tuple[str, str, str]]:
    """One finding: what, evidence, smallest input, remedy."""
    lines = [(label, finding.description, style), ("", finding.evidence, "dim")]
    if finding.smallest:
        lines.append(("", f"shown by: {finding.smallest}", "dim"))
    lines.append(("", f"instead: {finding.remedy}", "dim"))
    lines.append(("", f"more: heedful check --explain {finding.name}", "dim"))
    return lines


def closing(found: Diagnosis) -> list[str]:
    """Conventions, and what could not be told."""
    lines = []
    if found.conventions:
        lines.append("your conventions: " + " · ".join(found.conventions))
    lines += [f"can't tell: {words}" for words in found.untold]
    if found.explanation:
        lines.append(found.explanation)
    return lines


class Line(NamedTuple):
    """One line of the report as it is shown."""

    label: str
    label_style: str
    words: str
    style: str


def laid_out(found: Diagnosis, width: int | None) -> Iterator[Line]:
    """The report line by line, each at most so wide: what doesn't fit goes on below its own words."""
    for part in folded(headline(found), width, hang=2):
        yield Line("", "", part, STYLES[found.verdict])
    for label, words, style in lines_of(found):
        start = f"  {label:<{INDENT - 2}}"
        for part in folded(words, None if width is None else width - INDENT):
            yield Line(start, f"bold {style}", part, style if style == "dim" else "")
            start = " " * INDENT
    for line in closing(found):
        told = line == found.explanation
        for part in folded(line, width, hang=0 if told else 2):
            yield Line("", "", part, "" if told else "cyan")


def folded(words: str, width: int | None, hang: int = 0) -> list[str]:
    """The words in lines of this width, all but the first indented; long words stay whole."""
    if width is None:
        return [words]
    parts = []
    for line in words.split("\n"):
        start = line[: len(line) - len(line.lstrip())]
        parts += textwrap.wrap(
            line.strip(),
            max(width, NARROWEST),
            initial_indent=start,
            subsequent_indent=start + " " * hang,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return parts


def as_text(found: Diagnosis, width: int | None = None) -> str:
    """Plain text, as the command prints it without colors; each line is as long as it gets if no width is given."""
    return "\n".join(line.label + line.words for line in laid_out(found, width))


class Colored:
    """The same text in colors, for rich, as wide as its console."""

    def __init__(self, found: Diagnosis) -> None:
        self.found = found

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> Iterator["Text"]:
        """The lines, folded here so that they keep their indent."""
        from rich.text import Text

        for line in laid_out(self.found, options.max_width):
            yield Text.assemble(
                (line.label, line.label_style), (line.words, line.style), no_wrap=True, overflow="ignore"
            )


def as_html(found: Diagnosis) -> str:
    """A fragment for a notebook. Everything the target said is escaped."""
    color = {"right": "#1a7f37", "wrong": "#cf222e"}.get(found.verdict, "#9a6700")
    parts = [
        f'<div style="font-family:sans-serif"><b style="color:{color}">{html.escape(headline(found))}</b>'
    ]
    for title, findings in (("mistakes", found.mistakes), ("hazards", found.hazards)):
        if findings:
            parts.append(f"<p>{title}</p><ul>" + "".join(map(html_item, findings)) + "</ul>")
    if found.properties:
        parts.append("<ul>" + "".join(f"<li>{html.escape(p)}</li>" for p in found.properties) + "</ul>")
    parts += [f"<p>{html.escape(line)}</p>" for line in closing(found)]
    return "".join(parts) + "</div>"


def html_item(finding: Finding) -> str:
    """One finding as a list item."""
    details = [
        finding.evidence,
        finding.smallest and f"shown by: {finding.smallest}",
        f"instead: {finding.remedy}",
    ]
    inner = "<br>".join(html.escape(d) for d in details if d)
    return (
        f"<li><b>{html.escape(finding.description)}</b> (<code>{html.escape(finding.name)}</code>)"
        f"<br><small>{inner}</small></li>"
    )
