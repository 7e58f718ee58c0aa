"""Links between pages lead somewhere, and the README stays short enough to be read."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
SCREENS, LINES_PER_SCREEN = 2, 50


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_link_leads_to_a_file(page: Path) -> None:
    targets = [t for t in LINK.findall(page.read_text()) if "://" not in t]
    assert [t for t in targets if not (page.parent / t).exists()] == []


def test_the_readme_fits_two_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= SCREENS * LINES_PER_SCREEN


def test_the_index_lists_every_decision_by_its_title() -> None:
    folder = ROOT / "docs" / "decisions"
    titles = {p.name: p.read_text().splitlines()[0].split(": ", 1)[1] for p in folder.glob("0*.md")}
    index = (folder / "index.md").read_text()
    assert [name for name, title in titles.items() if f"]({name}) | {title} |" not in index] == []
