"""Small files with one subject, functions that fit a screen: the caps are enforced, not hoped for."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "heedful").rglob("*.py"))
FILE_LINES = 400
FUNCTION_LINES = 60
CORE = ["_attention.py", "_weights.py", "backends/reference.py"]
CORE_LINES = 600


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines_without_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end; a docstring may be as long as it needs to be."""
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        lines -= first.end_lineno - first.lineno + 1
    return lines


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_file_stays_under_the_cap(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= FILE_LINES, f"{name_of(path)} has {lines} lines; split it by subject (cap {FILE_LINES})"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_functions_fit_a_screen(path: Path) -> None:
    functions = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]
    long = {f.name: n for f in functions if (n := lines_without_docstring(f)) > FUNCTION_LINES}
    assert not long, f"{name_of(path)}: functions over {FUNCTION_LINES} lines: {long}"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_annotations_stay_objects(path: Path) -> None:
    """jaxtyping needs annotations as objects, so they are never postponed."""
    assert "from __future__ import annotations" not in path.read_text()


def test_the_core_reads_like_the_post() -> None:
    counts = {name: len((ROOT / "src" / "heedful" / name).read_text().splitlines()) for name in CORE}
    assert sum(counts.values()) < CORE_LINES, counts


def test_counting_leaves_out_the_docstring_only() -> None:
    source = 'def f():\n    """One.\n\n    Two.\n    """\n    a = 1\n    return a\n'
    assert lines_without_docstring(ast.parse(source).body[0]) == 3
