"""A diagnosis as text, as HTML, as JSON and back; the catalogue as a list, as lessons and as pages."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from heedful.checking import Diagnosis, Finding, teaching
from heedful.checking.catalogue import families, find, mistakes
from heedful.checking.pages import page
from heedful.checking.pictures import picture
from heedful.checking.report import as_text

PAGES = Path(__file__).parents[2] / "docs" / "check"
FOUND = Diagnosis(
    "attention(q, k, v, mask)",
    "wrong",
    (
        Finding(
            "scale-missing",
            "scale",
            "scores are not scaled",
            "falls from 1 to 0",
            "divide",
            "1 query, 2 keys",
        ),
    ),
    (Finding("empty-row-nan", "mask", "NaN & <b>more</b>", "18 numbers", "fill"),),
    ("mask True = may attend", "weights per head"),
    (),
    ("with one head: heads-merge-reshape",),
)
TEXT = """\
attention(q, k, v, mask) is wrong: 1 mistake, 1 hazard
  scale      scores are not scaled
             falls from 1 to 0
             shown by: 1 query, 2 keys
             instead: divide
             more: heedful check --explain scale-missing
  hazard     NaN & <b>more</b>
             18 numbers
             instead: fill
             more: heedful check --explain empty-row-nan
your conventions: mask True = may attend · weights per head
can't tell: with one head: heads-merge-reshape"""


def test_the_text() -> None:
    assert str(FOUND) == TEXT


def test_rich_shows_the_same_text() -> None:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(FOUND)
    assert console.file.getvalue() == TEXT + "\n"


NARROW = """\
attention(q, k, v, mask) is wrong: 1
  mistake, 1 hazard
  scale      scores are not scaled
             falls from 1 to 0
             shown by: 1 query, 2 keys
             instead: divide
             more: heedful check
             --explain scale-missing
  hazard     NaN & <b>more</b>
             18 numbers
             instead: fill
             more: heedful check
             --explain empty-row-nan
your conventions: mask True = may attend
  · weights per head
can't tell: with one head:
  heads-merge-reshape"""


def test_what_does_not_fit_goes_on_below_its_own_words() -> None:
    assert as_text(FOUND, 40) == NARROW
    console = Console(file=io.StringIO(), width=40, color_system=None)
    console.print(FOUND)
    assert console.file.getvalue() == NARROW + "\n"


def test_a_word_longer_than_the_line_stays_whole() -> None:
    found = Diagnosis("f(x)", "could not tell", explanation=f"see\n    {'x' * 60} there")
    assert as_text(found, 30).splitlines()[1:] == ["see", "    " + "x" * 60, "    there"]


def test_html_is_escaped() -> None:
    shown = FOUND._repr_html_()
    assert "NaN &amp; &lt;b&gt;more&lt;/b&gt;" in shown
    assert "<b>more" not in shown


def test_json_and_back() -> None:
    assert Diagnosis.from_dict(json.loads(json.dumps(FOUND.to_dict()))) == FOUND


@pytest.mark.parametrize(
    ("verdict", "hazards", "strict", "status"),
    [
        ("right", (), True, 0),
        ("right", FOUND.hazards, False, 0),
        ("right", FOUND.hazards, True, 1),
        ("wrong", (), False, 1),
        ("could not tell", (), False, 2),
    ],
)
def test_exit_status(verdict: str, hazards: tuple[Finding, ...], strict: bool, status: int) -> None:
    assert Diagnosis("f(x)", verdict, hazards=hazards).exit_status(strict) == status


def test_headlines() -> None:
    assert str(Diagnosis("f(x)", "right")) == "f(x) is right"
    assert (
        str(Diagnosis("f(x)", "could not tell", explanation="it loops")) == "f(x): could not tell\nit loops"
    )
    assert str(Diagnosis("f(x)", "wrong", properties=("a", "b"))) == (
        "f(x) is wrong: no known mistake fits\n  property   a\n             b"
    )


def test_the_list_names_every_entry(capsys: pytest.CaptureFixture[str]) -> None:
    teaching.show_list()
    shown = capsys.readouterr().out
    assert all(m.name in shown for m in mistakes())
    assert max(len(line) for line in shown.splitlines()) <= 116
    assert not any(mark in shown for mark in ("...", "{"))
    teaching.show_list(as_json=True)
    assert [m["name"] for m in json.loads(capsys.readouterr().out)] == [m.name for m in mistakes()]


@pytest.mark.parametrize("entry", mistakes(), ids=lambda m: m.name)
def test_every_entry_can_be_taught(entry: object) -> None:
    lesson = teaching.lesson(entry)
    assert entry.remedy.split()[0] in lesson
    assert all((entry.explanation, entry.remedy, entry.source, entry.shows))
    assert entry.explanation.endswith((".", ")"))


def test_most_entries_have_a_picture() -> None:
    drawn = [m.name for m in mistakes() if picture(m)]
    assert len(drawn) > 70
    assert picture(find("softmax-missing"))[0].split() == ["right", "weights", "wrong", "weights"]
    assert all("sum 1.00" in line for line in picture(find("causal-off-by-one"))[1:])


@pytest.mark.parametrize("family", families(), ids=lambda f: f.name)
def test_a_page_is_what_the_catalogue_says(family: object) -> None:
    written = (PAGES / f"{family.name}.md").read_text(encoding="utf-8")
    assert written == page(family), "run `python -m heedful.checking.pages docs/check`"


def test_the_softmax_page_begins_with_the_missing_softmax() -> None:
    headings = [line for line in (PAGES / "softmax.md").read_text().splitlines() if line.startswith("## ")]
    assert headings[0] == "## softmax-missing"
