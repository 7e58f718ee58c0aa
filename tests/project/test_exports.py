"""The public surface: what `heedful` offers is what it says it offers, and each name explains itself."""

import inspect
import re
import tomllib
from pathlib import Path

import pytest

import heedful

ROOT = Path(__file__).parents[2]
API_PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))


def documented(name: str) -> object:
    return getattr(heedful, name)


CALLABLES = [n for n in heedful.__all__ if callable(documented(n))]


def parameters_of(thing: object) -> list[str]:
    """Names of the parameters a caller can pass."""
    signature = inspect.signature(thing.__init__ if inspect.isclass(thing) else thing)
    return [
        n
        for n, p in signature.parameters.items()
        if n != "self" and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


def test_every_listed_name_exists_once_and_in_order() -> None:
    assert len(set(heedful.__all__)) == len(heedful.__all__)
    assert [n for n in heedful.__all__ if not hasattr(heedful, n)] == []


def test_nothing_public_is_left_off_the_list() -> None:
    found = {n for n, v in vars(heedful).items() if not n.startswith("_") and not inspect.ismodule(v)}
    assert found - set(heedful.__all__) == set()


def test_the_version_is_written_once_in_each_place_and_alike() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert heedful.__version__ == project["version"]


@pytest.mark.parametrize("name", CALLABLES)
def test_a_public_name_has_a_docstring(name: str) -> None:
    text = inspect.getdoc(documented(name)) or ""
    assert text.splitlines()[0].endswith((".", "?")), f"{name}: the first line is a sentence"


@pytest.mark.parametrize("name", [n for n in CALLABLES if inspect.isfunction(documented(n))])
def test_a_public_function_documents_each_parameter(name: str) -> None:
    text = inspect.getdoc(documented(name)) or ""
    missing = [p for p in parameters_of(documented(name)) if not re.search(rf"\b{p}\b", text)]
    assert missing == [], f"{name} says nothing about {missing}"


@pytest.mark.parametrize("name", heedful.__all__)
def test_a_public_name_has_its_place_in_the_api_pages(name: str) -> None:
    text = "\n".join(p.read_text() for p in API_PAGES)
    assert re.search(rf"\b{name}\b", text), f"no page in docs/api mentions {name}"
