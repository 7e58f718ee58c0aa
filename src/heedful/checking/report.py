"""Shows a diagnosis: as text, in colors, as HTML."""

import html
from typing import TYPE_CHECKING

from heedful.checking.diagnosis import UNCLEAR, Diagnosis, Finding

if TYPE_CHECKING:
    from rich.text import Text

INDENT = 13
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


def as_text(found: Diagnosis) -> str:
    """Plain text, as the command prints it without colors."""
    body = [f"  {label:<{INDENT - 2}}{text}" for label, text, _ in lines_of(found)]
    return "\n".join([headline(found), *body, *closing(found)])


def as_rich(found: Diagnosis) -> "Text":
    """The same text in colors, for rich."""
    from rich.text import Text

    text = Text()
    text.append(headline(found), STYLES[found.verdict])
    for label, words, style in lines_of(found):
        text.append(f"\n  {label:<{INDENT - 2}}", f"bold {style}")
        text.append(words, style if style == "dim" else "")
    for line in closing(found):
        text.append(f"\n{line}", "" if found.explanation == line else "cyan")
    return text


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
