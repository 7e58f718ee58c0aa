"""A checkpoint is whole or the one before it is, whatever happens."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import safetensors.torch
import torch

from heedful.train import checkpoint
from heedful.train.problems import CheckpointProblem


def problem(call):
    with pytest.raises(CheckpointProblem) as caught:
        call()
    return str(caught.value)


def test_what_was_saved_comes_back(tmp_path):
    tensors = {"a": torch.randn(3, 5), "b.c": torch.arange(4), "turned": torch.randn(2, 7).T}
    state = {"step": 12, "loss": 0.1 + 0.2, "best": float("inf"), "average": float("nan")}
    checkpoint.save(tmp_path / "x.safetensors", tensors, state)
    found, found_state = checkpoint.load(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert repr(found_state) == repr(state)
    assert os.listdir(tmp_path) == ["x.safetensors"]


def test_any_safetensors_reader_opens_it(tmp_path):
    checkpoint.save(tmp_path / "x.safetensors", {"a": torch.ones(2)}, {})
    assert torch.equal(safetensors.torch.load_file(tmp_path / "x.safetensors")["a"], torch.ones(2))


def test_files_that_are_no_checkpoints(tmp_path):
    missing, damaged, foreign = (
        tmp_path / f"{name}.safetensors" for name in ("missing", "damaged", "foreign")
    )
    assert problem(lambda: checkpoint.load(missing)) == f"There is no checkpoint {missing}."

    checkpoint.save(damaged, {"a": torch.randn(100)}, {})
    damaged.write_bytes(damaged.read_bytes()[:-10])
    assert problem(lambda: checkpoint.load(damaged)).startswith(
        f"{damaged} is damaged, or no safetensors file: "
    )

    safetensors.torch.save_file({"a": torch.randn(3)}, foreign)
    assert problem(lambda: checkpoint.load(foreign)) == (
        f"{foreign} is a safetensors file, but no checkpoint of `heedful train`: it doesn't name its format.\n"
        "Give the folder of a run, such as runs/latest."
    )
    safetensors.torch.save_file({"a": torch.randn(3)}, foreign, {"format": "pt"})
    assert "its format is 'pt'" in problem(lambda: checkpoint.load(foreign))


def test_a_disk_that_takes_no_more_leaves_the_last_one(tmp_path):
    """The limit on the size of files is real: the write fails half-way, as on a full disk."""
    script = textwrap.dedent("""
        import resource, sys
        from pathlib import Path
        import torch
        from heedful.train import checkpoint
        from heedful.train.problems import CheckpointProblem

        path = Path(sys.argv[1])
        checkpoint.save(path, {"a": torch.zeros(100)}, {"step": 1})
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        try:
            checkpoint.save(path, {"a": torch.ones(10_000)}, {"step": 2})
        except CheckpointProblem as problem:
            print(problem)
    """)
    elsewhere = tmp_path / "elsewhere.safetensors"
    checkpoint.save(elsewhere, {"a": torch.ones(10_000)}, {"step": 2})
    size = elsewhere.stat().st_size
    elsewhere.unlink()
    path = tmp_path / "last.safetensors"
    said = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == [
        f"{path} can't be written: File too large, {size:,} bytes.",
        f"The one before it is untouched. Free some space, then continue: heedful train --resume {tmp_path}",
    ]
    assert checkpoint.load(path)[1] == {"step": 1}
    assert os.listdir(tmp_path) == ["last.safetensors"]


@pytest.mark.slow
def test_killed_at_any_moment_of_saving_leaves_a_whole_checkpoint(tmp_path):
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        import torch
        from heedful.train import checkpoint

        step = 0
        while True:
            step += 1
            checkpoint.save(Path(sys.argv[1]), {"a": torch.full((500_000,), float(step))}, {"step": step})
            print(step, flush=True)
    """)
    path = tmp_path / "last.safetensors"
    for attempt in range(8):
        saving = subprocess.Popen(
            [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert saving.stdout.readline() == "1\n"
        time.sleep(0.05 + 0.013 * attempt)
        saving.send_signal(signal.SIGKILL)
        saving.wait()
        saving.stdout.close()
        tensors, state = checkpoint.load(path)
        assert torch.equal(tensors["a"], torch.full((500_000,), float(state["step"])))
