"""Every program and every command on a page runs, and prints what the page says it prints."""

import contextlib
import io
import os
import shlex
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from docs.markdown import Block, blocks, commands, matches

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = [p for p in PAGES if any(b.language == "python" for b in blocks(p))]
COMMANDS = [
    pytest.param(page, command, shown, id=f"{page.relative_to(ROOT)}: {command}")
    for page in PAGES
    for block in blocks(page)
    if block.language == "console"
    for command, shown in commands(block)
    if shlex.split(command)[0] in ("heedful", "python")
]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def run_block(block: Block, page: Path, namespace: dict[str, object]) -> str:
    """Run one block as if it stood at its line in the page, and give what it printed."""
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[1].lineno
        pytest.fail(f"{page}:{line}: {type(error).__name__}: {error}", pytrace=False)
    return without_trailing_space(printed.getvalue())


def without_trailing_space(text: str) -> str:
    """Lines as an editor leaves them: no space at their ends, a line break at the last."""
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


@pytest.mark.parametrize("page", PROGRAMS, ids=name_of)
def test_the_programs_of_a_page_print_what_it_shows(
    page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            printed = run_block(block, page, namespace)
            assert printed == without_trailing_space(block.shown or ""), (
                f"{name_of(page)}, block at line {block.line}"
            )


@pytest.mark.parametrize(("page", "command", "shown"), COMMANDS)
def test_a_command_prints_what_the_page_shows(page: Path, command: str, shown: str) -> None:
    program, *arguments = shlex.split(command)
    run = [sys.executable, *(["-m", "heedful"] if program == "heedful" else []), *arguments]
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        run, capture_output=True, text=True, timeout=110, cwd=ROOT, env=environment, check=False
    )
    assert matches(without_trailing_space(shown), without_trailing_space(done.stdout)), (
        done.stdout + done.stderr
    )
    assert done.returncode == 0


def test_a_block_knows_its_line_and_its_output(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# T\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\nWords.\n\n```python\nx = 2\n```\n")
    first, shown, second = blocks(page)
    assert (first.line, first.shown, second.line, second.shown) == (4, "1\n", 14, None)
    assert shown.language == "text"
    assert run_block(first, page, {}) == "1\n"


def test_a_console_block_splits_into_commands(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ heedful models\na\nb\n$ make test\n```\n")
    assert commands(blocks(page)[0]) == [("heedful models", "a\nb\n"), ("make test", "")]


def test_three_dots_stand_for_lines_and_for_nothing_else() -> None:
    assert matches("a\n...\nd\n", "a\nb\nc\nd\n")
    assert matches("a\n...\nd\n", "a\nd\n")
    assert not matches("a\n...\nd\n", "a\nb\nc\n")
    assert not matches("a\n", "a\nb\n")
    assert not matches("a.c\n", "abc\n")
