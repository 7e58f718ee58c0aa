"""Every example runs by itself and prints what its head says it prints."""

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LONGEST = 80
SLOW = {"passages.py", "train_with_entropy.py"}


def promised(script: Path) -> str | None:
    """What stands under "Prints:" in the head of a script."""
    head = ast.get_docstring(ast.parse(script.read_text())) or ""
    _, found, text = head.partition("\nPrints:\n\n")
    return textwrap.dedent(text) + "\n" if found else None


@pytest.mark.parametrize(
    "script",
    [pytest.param(path, marks=pytest.mark.slow if path.name in SLOW else ()) for path in EXAMPLES],
    ids=lambda path: path.name,
)
def test_an_example_prints_what_it_promises(script: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=110,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == promised(script)


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short(script: Path) -> None:
    assert len(script.read_text().splitlines()) <= LONGEST
