"""The commands as a person types them."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import typer
from typer.testing import CliRunner

from heedful.train import checkpoint, plots
from heedful.train.command import schedule, train
from heedful.train.loading import load_model, reader
from heedful.train.run_folder import RunFolder

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command()(train)
app.command()(schedule)
SMALL = (
    *("--num-layers", "2", "--num-heads", "2", "--embed-dim", "16", "--context", "24", "--batch", "3"),
    *("--warmup", "3", "--eval-every", "5", "--threads", "1"),
)


def heedful(*arguments):
    return CliRunner(env={"COLUMNS": "100", "TERM": "dumb"}).invoke(
        app, [str(argument) for argument in arguments]
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory, story):
    """The folder of runs after one run of twelve updates, and what was said."""
    runs, text = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("text") / "story.txt"
    text.write_text(story)
    said = heedful("train", "--text", text, *SMALL, "--steps", 12, "--runs", runs)
    assert said.exit_code == 0, said.output
    return runs, said.output


def test_a_run_leaves_a_folder_with_everything(trained):
    runs, said = trained
    folder = RunFolder.find(runs / "latest")
    assert sorted(path.name for path in folder.path.iterdir()) == [
        *(
            "best.safetensors",
            "config.json",
            "heads.png",
            "heads.svg",
            "last.safetensors",
            "loss.png",
            "loss.svg",
        ),
        *("metrics.jsonl", "tokenizer.json"),
    ]
    assert [entry["step"] for entry in folder.metrics("update")] == list(range(1, 13))
    assert [entry["step"] for entry in folder.metrics("evaluation")] == [0, 5, 10, 12]
    lines = said.splitlines()
    assert re.fullmatch(r"story.txt: [\d,]+ tokens to learn from, [\d,]+ held out, 3 documents", lines[0])
    assert re.fullmatch(r"10,704 parameters, cosine schedule, seed 0, (float32|bfloat16)", lines[1])
    assert re.match(r"     5  held-out loss \d\.\d{3}  best  ", lines[3])
    assert "Heads on the held-out text, over training" in said
    assert [line.split()[0] for line in lines if re.match(r"\d\.\d ", line)] == ["0.0", "0.1", "1.0", "1.1"]
    assert lines[-1] == f'Look at it: heedful see --model {folder.path} "Once upon a time"'


def test_the_pictures_are_pictures(trained):
    runs, _ = trained
    folder = RunFolder.find(runs / "latest").path
    for name in ("loss", "heads"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in (folder / f"{name}.svg").read_text()
    assert "table of pairs, held out" in (folder / "loss.svg").read_text()


def test_a_trained_model_reads(trained):
    runs, _ = trained
    reading = reader(runs / "latest").read("the quick fox")
    assert [token.text for token in reading.tokens] == ["<|begin|>", *"the quick fox"]
    assert [tuple(weights.shape) for weights in reading.weights] == [(1, 2, 14, 14)] * 2
    assert reading.causal
    best = checkpoint.load(RunFolder.find(runs / "latest").best)[0]
    assert (load_model(runs / "latest").embedding.weight == best["embedding.weight"]).all()


def test_without_matplotlib_a_run_says_how_to_get_plots(text_file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = heedful("train", "--text", text_file, *SMALL, "--steps", 5, "--runs", tmp_path / "runs")
    assert said.exit_code == 0
    assert f"Plots need matplotlib: {plots.INSTALL}" in said.output


def test_resume_takes_no_other_settings(trained):
    runs, _ = trained
    said = heedful("train", "--resume", runs / "latest", "--steps", 50, "--lr", 0.1)
    assert said.exit_code == 2
    assert "a run continues with its own settings; leave out --steps, --lr." in " ".join(said.stderr.split())


def test_problems_are_messages_and_exit_codes(text_file, tmp_path):
    for arguments, message in (
        (("--text", tmp_path / "none.txt"), f"There is no file {tmp_path / 'none.txt'}."),
        (
            ("--schedule", "cosin"),
            "schedule must be one of constant, warmup, noam, inverse-sqrt, cosine, linear, wsd, "
            "one-cycle, restarts, got 'cosin'.",
        ),
        (("--embed-dim", 30, "--num-heads", 4), "embed_dim must be a multiple of num_heads, got 30 and 4."),
        (("--resume", tmp_path), f"{tmp_path} is not the folder of a run: it has no config.json."),
        (
            ("--steps", 50),
            "The schedule doesn't fit a run of 50 steps. cosine(): total must be more than warmup, "
            "got total 50 and warmup 100.",
        ),
        (
            ("--schedule", "noam", "--lr", 0.1),
            "noam sets the rate itself, from embed_dim and warmup, so it takes no lr.\n"
            "For the same curve with a peak of your own: --schedule inverse-sqrt --lr RATE",
        ),
    ):
        said = heedful("train", *arguments)
        assert (said.exit_code, said.stderr.strip()) == (1, message)
        assert said.stdout == ""


@pytest.mark.slow
def test_a_run_that_diverges_says_so_after_its_plots(text_file, tmp_path):
    said = heedful(
        *("train", "--text", text_file, *SMALL, "--runs", tmp_path / "runs"),
        *("--steps", 300, "--lr", 5, "--warmup", 50, "--clip", 100, "--patience", 0),
    )
    assert said.exit_code == 1
    assert said.stderr.startswith("Training diverged at step ")
    assert "Loss, in nats per token" in said.stdout


@pytest.mark.slow
def test_find_lr_suggests_a_rate(text_file):
    said = heedful("train", "--text", text_file, *SMALL, "--find-lr")
    assert said.exit_code == 0, said.output
    suggested = float(re.search(r"heedful train --lr (\S+)", said.output)[1])
    assert 1e-4 < suggested < 0.3


@pytest.mark.slow
def test_compare_gives_one_table_and_one_plot(text_file, tmp_path):
    said = heedful(
        *("train", "--text", text_file, *SMALL, "--runs", tmp_path, "--steps", 10),
        *("--compare", "constant, cosine,noam", "--seeds", 2),
    )
    assert said.exit_code == 0, said.output
    folder = next(tmp_path.glob("compare-*"))
    data = json.loads((folder / "comparison.json").read_text())
    assert [outcome["name"] for outcome in data["outcomes"]] == ["constant", "cosine", "noam"]
    assert all(len(outcome["losses"]) == 2 for outcome in data["outcomes"])
    assert data["seeds"] == [0, 1]
    noam = data["outcomes"][2]
    assert noam["peak"] == pytest.approx((16 * 3) ** -0.5)
    mean = sum(noam["losses"]) / 2
    assert re.search(rf"noam\s.*{mean:.3f} ± ", said.output)
    assert (folder / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert "Lowest held-out loss, mean and spread over 2 seeds" in said.output


def test_schedules_are_listed_and_shown():
    listed = heedful("schedule").output.splitlines()
    assert [line.split()[0] for line in listed] == [
        *("constant", "warmup", "noam", "inverse-sqrt", "cosine", "linear", "wsd", "one-cycle", "restarts")
    ]
    shown = heedful("schedule", "cosine", "--steps", 100, "--warmup", 10, "--lr", 0.01).output.splitlines()
    assert shown[1:] == [
        "update 1       0.001",
        "update 10      0.01",
        "update 11      0.01",
        "update 51      0.00607",
        "update 100     0.000503",
        "after the end  0.0005",
    ]
    drawn = heedful("schedule", "noam", "--plot").output.splitlines()
    assert drawn[1].lstrip().startswith("0.0102 ")
    assert "update 0" in drawn[12]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_stopped_by_a_signal_it_saves_and_continues(text_file, tmp_path, number):
    """A real process gets a real signal in the middle of a run."""
    runs = tmp_path / "runs"
    script = (
        "import typer; from heedful.train.command import train; "
        "app = typer.Typer(pretty_exceptions_enable=False); app.command()(train); app()"
    )
    command = [sys.executable, "-c", script, "--text", text_file, *SMALL, "--steps", 100_000, "--runs", runs]
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    metrics = runs / "latest" / "metrics.jsonl"
    deadline = time.monotonic() + 90
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 7):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    folder = RunFolder.find(runs / "latest")
    assert said.splitlines()[-1] == f"Stopped and saved. Continue with: heedful train --resume {folder.path}"
    step = checkpoint.load(folder.last)[1]["step"]
    assert step == list(folder.metrics("update"))[-1]["step"]
