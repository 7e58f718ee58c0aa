"""The figures of the README are those that were measured."""

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
