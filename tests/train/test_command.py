"""The commands as a person types them."""

import json
import os
import re
import shutil
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
from heedful.train.recipe import Recipe
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


SCHEDULES = "constant, warmup, noam, inverse-sqrt, cosine, linear, wsd, one-cycle, restarts"
WRONG = {
    "--schedule cosin": f"'--schedule': must be one of {SCHEDULES}, got 'cosin'.",
    "--compare noam,cosin": f"'--compare': must be one of {SCHEDULES}, got 'cosin'.",
    "--compare ,": "'--compare': must name one at least; `heedful schedule` lists them.",
    "--embed-dim 30": "'--embed-dim': must be a multiple of --num-heads, got 30 and 4.",
    "--num-kv-heads 3": "'--num-heads': must be a multiple of --num-kv-heads, got 4 and 3.",
    "--num-kv-heads 0": "'--num-kv-heads': must be at least 1, got 0.",
    "--embed-dim 12": "'--embed-dim': must be an even multiple of --num-heads, since rotary positions turn pairs of "
    "entries; got 12 and 4, so heads of 3.",
    "--steps 100 --warmup 100": "'--warmup': must be less than --steps, got 100 of 100.",
    "--warmup -1": "'--warmup': must not be negative, got -1. 0 means no warm-up.",
    "--schedule noam --lr 0.1": "'--lr': must be left out with noam, which sets the rate itself, from --embed-dim and "
    "--warmup. For the same curve with a peak of your own take the schedule inverse-sqrt.",
    "--lr abc": "'--lr': 'abc' is not a number.",
    "--lr 0": "'--lr': must be above zero, got 0.0.",
    "--clip -1": "'--clip': must be above zero, got -1.0.",
    "--weight-decay -1": "'--weight-decay': must not be negative, got -1.0.",
    "--patience -1": "'--patience': must be at least 1, got -1.",
    "--steps 1.5": "'--steps': '1.5' is not a whole number.",
    "--seeds 0": "'--seeds': it must be at least 1, got 0.",
    "--text /none.txt": "'--text': There is no file /none.txt.",
    "--resume /none": "'--resume': /none is not the folder of a run: it has no config.json.",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_a_wrong_option_is_named_as_it_is_typed(arguments, tmp_path):
    folder = () if "--resume" in arguments else ("--runs", tmp_path)
    said = heedful("train", *arguments.split(), *folder)
    assert said.exit_code == 2, said.output
    assert f"Invalid value for {WRONG[arguments]}" in " ".join(said.stderr.split())
    assert said.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_schedule_that_is_none_is_named():
    said = heedful("schedule", "cosin")
    assert said.exit_code == 2
    assert f"Invalid value for 'NAME': must be one of {SCHEDULES}, got 'cosin'." in " ".join(
        said.stderr.split()
    )


def test_a_run_that_is_damaged_is_no_wrong_option(trained, tmp_path):
    runs, _ = trained
    folder = shutil.copytree(RunFolder.find(runs / "latest").path, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config["recipe"]["num_heads"] = 3
    (folder / "config.json").write_text(json.dumps(config))
    said = heedful("train", "--resume", folder)
    assert said.exit_code == 1
    assert said.stderr == "embed_dim must be a multiple of num_heads, got 16 and 3.\n"


@pytest.mark.parametrize("name", SCHEDULES.split(", "))
@pytest.mark.parametrize("steps", [1, 2, 3, 50])
def test_the_default_warm_up_fits_any_run(name, steps):
    said = heedful("schedule", name, "--steps", steps)
    assert said.exit_code == 0, said.output


def test_a_short_run_has_a_short_warm_up():
    shown = heedful("schedule", "cosine", "--steps", 40, "--lr", 1).output.splitlines()
    assert "update 10      1" in shown
    assert Recipe().warm_up == 100
    assert "a quarter of the steps where that is fewer" in " ".join(heedful("train", "--help").output.split())


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


def stopped_by(number, metrics, *arguments):
    """What a real process has said that got a real signal in the middle of a run."""
    script = (
        "import typer; from heedful.train.command import train; "
        "app = typer.Typer(pretty_exceptions_enable=False); app.command()(train); app()"
    )
    command = [sys.executable, "-c", script, *arguments]
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 90
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 7):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    return said.splitlines()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_stopped_by_a_signal_it_saves_and_continues(text_file, tmp_path, number):
    runs = tmp_path / "runs"
    options = "--text", text_file, *SMALL, "--steps", 100_000, "--runs", runs
    said = stopped_by(number, runs / "latest" / "metrics.jsonl", *options)
    folder = RunFolder.find(runs / "latest")
    assert said[-1] == f"Stopped and saved. Continue with: heedful train --resume {folder.path}"
    step = checkpoint.load(folder.last)[1]["step"]
    assert step == list(folder.metrics("update"))[-1]["step"]


class Latest:
    """The metrics of the second run of a comparison, whose folder has the time in its name."""

    def __init__(self, runs):
        self.runs = runs

    def found(self):
        return next(self.runs.glob("compare-*/constant-1/latest/metrics.jsonl"), None)

    def exists(self):
        return self.found() is not None

    def read_text(self):
        return self.found().read_text()


def test_a_comparison_stopped_by_a_signal_says_what_is_kept(text_file, tmp_path):
    options = "--text", text_file, *SMALL, "--compare", "constant,cosine", "--steps", 200, "--eval-every", 100
    said = stopped_by(signal.SIGINT, Latest(tmp_path), *options, "--runs", tmp_path)
    folder = next(tmp_path.glob("compare-*"))
    run = RunFolder.find(folder / "constant-1" / "latest")
    step = checkpoint.load(run.last)[1]["step"]
    assert 0 < step < 200
    assert said[:2] == ["Runs: 6, 200 updates each. Schedules: constant, cosine.", str(folder)]
    assert said[2].startswith("constant, seed 0: lowest held-out loss ")
    assert [line for line in said[3:] if line] == [
        f"Stopped. Finished and kept: 1 of 6 runs, in {folder}",
        f"The run of constant, seed 1, is saved after {step} of 200 updates. "
        f"Continue it with: heedful train --resume {run.path}",
        "The comparison of the rest begins anew: --compare constant,cosine",
    ]
