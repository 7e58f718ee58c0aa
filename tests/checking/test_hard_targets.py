"""Targets that hang, exit, crash, shout or don't exist get a paragraph, not a traceback."""

import json
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from heedful.checking import Diagnosis, assert_attention
from heedful.checking.engine import examine
from heedful.checking.isolation import check_apart
from heedful.checking.options import Options
from heedful.checking.problems import CannotCheck
from heedful.checking.targets import load

OPTIONS = Options()
SOURCE = """
import os
import sys
import torch


def attention(q, k, v, mask=None):
    scores = q @ k.mT / q.shape[-1]
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ v


def loops(q, k, v):
    while True:
        pass


def leaves(q, k, v):
    print("good bye")
    os._exit(3)


def exits(q, k, v):
    sys.exit("enough")


def crashes(q, k, v):
    os.kill(os.getpid(), 11)


def shouts(q, k, v):
    print("x" * 3_000_000)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def wants_a_gpu(q, k, v):
    return q.to("cuda")


def raises(q, k, v):
    raise ValueError("I never work")


number = 3


class Turn:
    def rotate(self, x):
        return x


turn = Turn()


class Narrow(torch.nn.Module):
    def __init__(self, d_model, n_heads, taps=2):
        super().__init__()
        self.n_heads, self.taps = n_heads, taps
        self.qkv = torch.nn.Linear(d_model, 3 * d_model)

    def forward(self, x, flag=True):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        if self.taps != 1:
            raise RuntimeError("taps and heads differ")
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("targets")
    (path / "model.py").write_text(SOURCE)
    (path / "broken.py").write_text("def f(:\n    pass\n")
    (path / "ends.py").write_text("import sys\nsys.exit(2)\n")
    (path / "needs.py").write_text("import no_such_module_anywhere\n")
    (path / "notes.txt").write_text("not code\n")
    many = "".join(f"def helper{i}(x):\n    return x\n\n\n" for i in range(26))
    (path / "many.py").write_text(many)
    (path / "fails.py").write_text("import torch\n\nx = torch.zeros(2) + torch.zeros(3)\n")
    return path


def apart(folder: Path, spec: str, timeout: float = 60.0) -> Diagnosis:
    return check_apart(f"{folder}/{spec}", OPTIONS, timeout)


def test_a_wrong_one_is_found_wrong_in_a_child_process(folder: Path) -> None:
    found = apart(folder, "model.py:attention")
    assert [m.name for m in found.mistakes] == ["scale-head-dim"]
    assert found.target == "attention(q, k, v, mask)"


@pytest.mark.slow
def test_an_endless_loop_is_ended(folder: Path) -> None:
    start = time.monotonic()
    found = apart(folder, "model.py:loops", timeout=12.0)
    assert time.monotonic() - start < 30
    assert (found.verdict, found.exit_status()) == ("could not tell", 2)
    assert found.explanation == (
        "it was still running after 12 seconds, while heedful was working out how to call it, and was ended. If it "
        "loops on small inputs, that is the mistake; if it is only slow (it compiles a kernel, loads a model), give "
        "it more time with --timeout SECONDS."
    )


def test_one_that_leaves_the_process(folder: Path) -> None:
    assert apart(folder, "model.py:leaves").explanation == (
        "it ended the process with status 3 while heedful was working out how to call it: does it call exit? The last "
        "thing it printed: good bye"
    )


def test_one_that_crashes_the_process(folder: Path) -> None:
    assert apart(folder, "model.py:crashes").explanation == (
        "it crashed the process (SIGSEGV) while heedful was working out how to call it. That happens in native code: "
        "an index out of bounds, a wrong pointer, too little memory."
    )


def test_megabytes_of_output_do_no_harm(folder: Path) -> None:
    assert apart(folder, "model.py:shouts").verdict == "right"


EXPLAINED = {
    "model.py:exits": "it ends the program (sys.exit) when it is called: enough",
    "model.py:number": "model.py:number can't be called: it is of type int.",
    "model.py:turn": (
        "model.py:turn can't be called: it is of type Turn. One of its methods can be: add a dot and its name (rotate)."
    ),
    "model.py:attn": "{folder}/model.py has no name 'attn'. Did you mean attention?",
    "model.py:zzzzzz": (
        "{folder}/model.py has no name 'zzzzzz'. It has: attention, loops, leaves, exits, crashes, shouts, "
        "wants_a_gpu, raises, Turn, Narrow."
    ),
    "many.py:f": (
        "{folder}/many.py has no name 'f'. It has: "
        + ", ".join(f"helper{i}" for i in range(20))
        + ", and 6 more."
    ),
    "notes.txt:f": "{folder}/notes.txt is not a Python file: its name doesn't end in .py.",
    "model.py:Narrow": (
        "every way of calling it that I know failed. The first one, with inputs of shape (batch, length, 24), gave:\n"
        "RuntimeError: taps and heads differ\nValues for other parameters can be given with --set NAME=VALUE.\n"
        "It was built as Narrow(d_model=24, n_heads=3). --set NAME=VALUE reaches these arguments, too; or check an "
        "instance: FILE.py:NAME of an object works."
    ),
    "nothing.py:f": "there is no file {folder}/nothing.py.",
    "broken.py:f": "{folder}/broken.py has a syntax error on line 1: invalid syntax\n    def f(:",
    "ends.py:f": (
        "importing {folder}/ends.py ends the program (sys.exit(2)). Put what runs at the end of the file under "
        '`if __name__ == "__main__":`.'
    ),
    "needs.py:f": (
        "importing {folder}/needs.py needs the module 'no_such_module_anywhere', which is not installed here. Install "
        "it, or run heedful with the Python that has it: python -m heedful check ..."
    ),
    "fails.py:f": (
        "importing {folder}/fails.py failed on line 3 of fails.py: RuntimeError: The size of tensor a (2) must match "
        "the size of tensor b (3) at non-singleton dimension 0"
    ),
    "model.py": (
        "'{folder}/model.py' names no target. Write FILE.py:NAME or package.module:NAME, for example "
        "my_model.py:attention."
    ),
}


def explanation(folder: Path, spec: str) -> str:
    """What a user reads about a target that can't be checked; in this process, which is quicker."""
    try:
        found = examine(load(f"{folder}/{spec}"), Options(), spec)
    except CannotCheck as problem:
        return str(problem)
    assert found.verdict == "could not tell"
    return found.explanation


@pytest.mark.parametrize("spec", EXPLAINED)
def test_a_paragraph_says_what_to_do(folder: Path, spec: str) -> None:
    assert explanation(folder, spec) == EXPLAINED[spec].format(folder=folder)


def test_a_setting_reaches_the_constructor_or_the_call(folder: Path) -> None:
    target = load(f"{folder}/model.py:Narrow")
    found = examine(target, Options(settings={"taps": 1, "flag": False}))
    assert (found.verdict, found.mistakes, found.properties) == ("right", (), ()), str(found)


@pytest.mark.parametrize(
    ("name", "known"), [("attention", "q, k, v, mask"), ("Narrow", "d_model, n_heads, taps, x, flag")]
)
def test_a_setting_that_no_parameter_takes(folder: Path, name: str, known: str) -> None:
    found = examine(load(f"{folder}/model.py:{name}"), Options(settings={"nonsense": 3}))
    assert (found.verdict, found.explanation) == (
        "could not tell",
        f"{name} has no parameter 'nonsense' to set. It has: {known}.",
    )


def test_a_gpu_is_wanted_and_not_there(folder: Path) -> None:
    assert explanation(folder, "model.py:wants_a_gpu").endswith(
        "It wants a GPU, and none can be used here. Let the device follow the inputs (query.device), and the check can "
        "run on a CPU."
    )


def test_one_that_always_raises_is_quoted(folder: Path) -> None:
    words = explanation(folder, "model.py:raises")
    assert "ValueError: I never work" in words
    assert "--layout" in words


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """The command, as its registration in the command line runs it."""
    code = "import sys, typer; from heedful.checking.command import check; typer.run(check)"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=100, check=False
    )


def test_the_command_prints_json_and_gives_an_exit_status(folder: Path) -> None:
    done = run(f"{folder}/model.py:attention", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    assert (found["target"], found["verdict"]) == ("attention(q, k, v, mask)", "wrong")
    assert {"name", "family", "description", "evidence", "remedy"} <= found["mistakes"][0].keys()
    assert found["mistakes"][0]["family"] == "scale"
    assert [h["name"] for h in found["hazards"]] == ["empty-row-nan", "masked-nan-leak"]
    assert "mask True = may attend" in found["conventions"]


def test_the_command_is_as_wide_as_it_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    lines = run(f"{folder}/model.py:attention").stdout.splitlines()
    assert max(len(line) for line in lines) <= 50
    assert lines[2:4] == [
        "  scale      scores are divided by 8.00 =",
        "             head_dim; expected 2.83 =",
    ]


def test_the_command_explains(folder: Path) -> None:
    done = run("--explain", "softmax-missing")
    assert done.returncode == 0
    assert "sum 1.00" in done.stdout
    assert "instead:" in done.stdout


@pytest.mark.parametrize(
    ("option", "given", "words"),
    [
        ("--timeout", "0", "0 is too short; 1 second or more."),
        ("--timeout", "soon", "'soon' is not a number of seconds."),
        ("--heads", "0", "'0' is not a number of heads;"),
    ],
)
def test_the_command_says_what_is_wrong_with_a_number(
    folder: Path, option: str, given: str, words: str
) -> None:
    done = run(f"{folder}/model.py:attention", option, given)
    assert done.returncode == 2
    assert words in done.stderr


def test_the_command_says_when_a_name_is_unknown() -> None:
    done = run("--explain", "softmax-mising")
    assert (done.returncode, done.stdout) == (
        2,
        "no mistake is called 'softmax-mising'. Did you mean softmax-missing or softmax-singleton or "
        "softmax-low-precision?\n",
    )


def test_assert_attention_shows_the_whole_report() -> None:
    def half(q, k, v):
        return (q @ k.mT / q.shape[-1]).softmax(-1) @ v

    with pytest.raises(AssertionError) as caught:
        assert_attention(half)
    measured = re.sub(r"\d\.\de-\d\d", "x", str(caught.value))
    assert measured == textwrap.dedent("""\
        half(q, k, v) is wrong: 1 mistake
          scale      scores are divided by 8.00 = head_dim; expected 2.83 = sqrt(head_dim)
                     with that assumed the largest error falls from x to x
                     shown by: 1 sample, 1 head, 1 query, 2 keys: query [1.54, -0.29]; key [-2.18, 0.57, -1.08, \
-1.40]; value [0.40, 0.84] gives [0.73], right is [0.77]
                     instead: scores = query @ key.mT / math.sqrt(query.shape[-1]), with the last size of ONE head; \
and scale only once, either the query or the scores
                     more: heedful check --explain scale-head-dim
        your conventions: layout (batch, heads, length, size)""")


def test_one_of_several_mistakes_is_shown_against_what_its_own_mending_gives() -> None:
    """The other mistakes are still there, so that is not yet right, and numbers that they make NaN show nothing."""

    def attention(q, k, v, causal=False):
        scores = q @ k.mT / k.shape[-2] ** 0.5
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).tril(1) == 0, float("-inf"))
        return scores.softmax(-2) @ v

    with pytest.raises(AssertionError) as caught:
        assert_attention(attention)
    shown = [line for line in str(caught.value).splitlines() if "shown by" in line]
    assert len(shown) == 3
    for line in shown:
        assert re.search(r"gives \[[-\d., ]+\], with this mended \[[-\d., ]+\]$", line)
