"""The figures of the README are those that were measured."""

import re
from pathlib import Path

from benchmarks import table

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_tables_of_the_readme_are_what_was_measured() -> None:
    attention, watching = table.read("results"), table.read("watching")
    assert not attention["quick"]
    assert not watching["quick"]
    assert table.attention(attention) in README
    assert table.models(watching) in README
    assert attention["machine"]["processor"].split(" (")[0] in README


def test_the_letters_in_the_names_of_rows_are_explained() -> None:
    names = " ".join(row["case"] for row in table.read("results")["cases"])
    explained = README[README.index("## How fast") : README.index("| |", README.index("## How fast"))]
    for letter in set(re.findall(r"\b([A-Z])\d", names)):
        assert re.search(rf"\b{letter} (counts )?[a-z]", explained), letter
    assert "GQA 32/8 has" in explained


def test_what_it_does_is_shown_before_how_fast() -> None:
    assert README.index("$ heedful see") < README.index("## How fast")
