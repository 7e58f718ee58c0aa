"""A run: it learns, repeats, continues bit for bit, and stops with a message when it must."""

import dataclasses
import json
import math

import pytest
import torch

from heedful.train import checkpoint, learning, trainer
from heedful.train.problems import CheckpointProblem, Diverged, RunProblem
from heedful.train.run_folder import RunFolder
from heedful.train.trainer import Trainer


def run(recipe, parent, most=None):
    """A run, left after `most` updates: its trainer and its updates."""
    going = Trainer.start(recipe, parent)
    updates = []
    for update in going.updates():
        updates.append(update)
        if len(updates) == most:
            break
    return going, updates


def measured(folder):
    """The metrics of a run, without the times."""
    return [{key: value for key, value in entry.items() if key != "seconds"} for entry in folder.metrics()]


def same(left, right):
    left, right = left.state_dict(), right.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.slow
def test_it_learns(small, tmp_path):
    """It learns more than a table of pairs can hold."""
    going, updates = run(small(steps=200, lr=0.02, eval_every=25, batch=8, embed_dim=32, echo=0.0), tmp_path)
    assert updates[0].loss == pytest.approx(math.log(257), abs=0.2)
    assert going.state.best_loss < going.folder.config["bigram_loss"] - 0.1
    assert [update.step for update in updates] == list(range(1, 201))
    assert [update.step for update in updates if update.evaluation] == list(range(25, 201, 25))


def test_the_rate_of_each_update_is_that_of_the_schedule(small, tmp_path):
    recipe = small(schedule="wsd", lr=0.004, warmup=4)
    _, updates = run(recipe, tmp_path)
    assert [update.rate for update in updates] == [recipe.rate(step) for step in range(12)]
    assert updates[0].rate == pytest.approx(0.001)


def test_a_seed_repeats_the_run_and_another_does_not(small, tmp_path):
    torch.manual_seed(1)
    first, _ = run(small(dropout=0.2, seed=4), tmp_path)
    torch.manual_seed(2)
    again, _ = run(small(dropout=0.2, seed=4), tmp_path)
    other, _ = run(small(dropout=0.2, seed=5), tmp_path)
    assert same(first.model, again.model)
    assert measured(first.folder) == measured(again.folder)
    assert not same(first.model, other.model)


def test_a_run_leaves_torchs_generator_alone(small, tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    run(small(dropout=0.2), tmp_path)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("stop", [1, 5, *(pytest.param(stop, marks=pytest.mark.slow) for stop in (4, 8, 11))])
def test_stopped_anywhere_and_resumed_equals_uninterrupted(small, tmp_path, stop):
    recipe = small(dropout=0.1, accumulate=2, num_kv_heads=1)
    whole, _ = run(recipe, tmp_path / "whole")
    stopped, _ = run(recipe, tmp_path / "parts", most=stop)
    stopped.save()
    resumed = Trainer.resume(stopped.folder.path)
    assert resumed.state.step == stop
    for _ in resumed.updates():
        pass
    assert same(whole.model, resumed.model)
    assert measured(whole.folder) == measured(resumed.folder)
    for name in ("last", "best"):
        left, right = (checkpoint.load(getattr(going.folder, name)) for going in (whole, resumed))
        assert left[0].keys() == right[0].keys()
        assert all(torch.equal(left[0][key], right[0][key]) for key in left[0])
        assert {**left[1], "seconds": 0} == {**right[1], "seconds": 0}


def test_killed_between_checkpoints_loses_only_the_updates_since(small, tmp_path):
    whole, _ = run(small(), tmp_path / "whole")
    killed, _ = run(small(), tmp_path / "killed", most=8)
    with (killed.folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "update", "ste')
    resumed = Trainer.resume(killed.folder.path)
    assert resumed.state.step == 5
    for _ in resumed.updates():
        pass
    assert same(whole.model, resumed.model)
    assert measured(whole.folder) == measured(resumed.folder)


def test_accumulated_batches_are_one_large_batch(small, tmp_path):
    """With dropout off, the gradient of two batches of 3 is that of their 6 windows."""
    recipe = small(echo=0.0, accumulate=2, steps=1, warmup=0)
    going = Trainer.start(recipe, tmp_path)
    model = learning.new_model(recipe, going.corpus.vocabulary)
    losses = [learning.loss_of(model, going.batches.at(number)) for number in range(2)]
    (sum(losses) / 2).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf)
    (update,) = going.updates()
    assert update.loss == pytest.approx(sum(loss.item() for loss in losses) / 2)
    assert update.norm == pytest.approx(norm.item(), rel=1e-5)


def test_gradients_are_clipped_before_the_update(small, tmp_path):
    """Without momentum to hide it: an update of plain descent would be `rate * clip` long."""
    recipe = small(clip=1e-3, steps=1, warmup=0)
    going = Trainer.start(recipe, tmp_path)
    (update,) = going.updates()
    after = torch.cat([parameter.grad.flatten() for parameter in going.model.parameters()])
    assert update.norm > 0.1
    assert after.norm().item() == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.slow
def test_stops_early_when_evaluations_get_no_better(small, tmp_path):
    going, updates = run(small(steps=400, lr=0.03, eval_every=4, patience=2, echo=0.0), tmp_path)
    losses = [update.evaluation.loss for update in updates if update.evaluation]
    assert len(updates) < 400
    assert going.state.best_loss == min(losses)
    assert losses[-3] == min(losses)
    assert going.finished


def test_bfloat16_stays_close(small, tmp_path):
    _, exact = run(small(), tmp_path)
    _, rough = run(small(precision="bfloat16"), tmp_path)
    difference = max(abs(a.loss - b.loss) for a, b in zip(exact, rough, strict=True))
    assert 0 < difference < 0.1


def test_precision_follows_the_cpu(monkeypatch):
    for capabilities, expected in (({"avx2": True}, torch.float32), ({"amx_bf16": True}, torch.bfloat16)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=capabilities: found, raising=False)
        assert learning.compute_dtype("auto") == expected


def test_a_loss_that_is_no_number_stops_before_the_weights_are_touched(small, tmp_path, monkeypatch):
    going, _ = run(small(), tmp_path, most=6)
    before = {name: tensor.clone() for name, tensor in going.model.state_dict().items()}
    real = trainer.loss_of
    monkeypatch.setattr(trainer, "loss_of", lambda *arguments: real(*arguments) * math.nan)
    with pytest.raises(Diverged) as caught:
        next(going.updates())
    folder = going.folder
    assert str(caught.value) == (
        "Training diverged at step 6: loss nan, norm of the gradient nan; the rate was 0.0023.\n"
        f"Nothing of it was saved: {folder.last} is from an earlier step, {folder.best} from step 5.\n"
        "Try a lower rate (--lr 0.001), a longer warm-up (--warmup 6), or look for one: heedful train --find-lr"
    )
    assert all(torch.equal(before[name], tensor) for name, tensor in going.model.state_dict().items())
    assert checkpoint.load(folder.last)[1]["step"] == 5


@pytest.mark.slow
def test_a_loss_that_runs_away_stops(small, tmp_path):
    with pytest.raises(Diverged, match=r"^Training diverged at step \d+: the smoothed loss is \d"):
        run(small(steps=400, lr=3.0, warmup=60, clip=100.0, patience=None), tmp_path)
    (folder,) = {RunFolder.find(path) for path in tmp_path.iterdir() if path.is_dir()}
    assert all(tensor.isfinite().all() for tensor in checkpoint.load(folder.last)[0].values())


def test_a_text_that_has_changed_is_not_continued(small, text_file, tmp_path):
    going, _ = run(small(), tmp_path, most=2)
    text_file.write_text(text_file.read_text() + "more")
    with pytest.raises(CheckpointProblem) as caught:
        Trainer.resume(going.folder.path)
    assert str(caught.value).splitlines()[0] == (
        f"story.txt has changed since {going.folder.path} was started: the run can't continue on another text."
    )


def test_the_checkpoint_of_another_run(small, tmp_path):
    going, _ = run(small(), tmp_path / "one", most=1)
    wider, _ = run(small(embed_dim=20), tmp_path / "two", most=1)
    going.folder.last.write_bytes(wider.folder.last.read_bytes())
    with pytest.raises(CheckpointProblem) as caught:
        Trainer.resume(going.folder.path)
    assert str(caught.value) == (
        f"{going.folder.last} is the checkpoint of another run: embedding.weight has the shape (257, 20), "
        f"and the recipe in {going.folder.path / 'config.json'} asks for (257, 16)."
    )


def test_a_folder_that_is_no_run(tmp_path):
    for path, message in (
        (tmp_path / "other", f"{tmp_path / 'other'} is not the folder of a run: it has no config.json."),
        (tmp_path / "latest", f"There is no run in {tmp_path} yet. Start one: heedful train"),
    ):
        with pytest.raises(RunProblem) as caught:
            Trainer.resume(path)
        assert str(caught.value) == message


def test_latest_is_the_newest_run_with_or_without_a_link(small, tmp_path):
    first, _ = run(small(), tmp_path, most=1)
    second, _ = run(small(), tmp_path, most=1)
    assert first.folder.path != second.folder.path
    assert RunFolder.find(tmp_path / "latest").path == second.folder.path.resolve()
    (tmp_path / "latest").unlink()
    assert RunFolder.find(tmp_path / "latest").path == second.folder.path.resolve()


def test_the_folder_says_how_the_run_was_made(small, tmp_path):
    recipe = small(steps=5)
    going, _ = run(recipe, tmp_path)
    config = json.loads((going.folder.path / "config.json").read_text())
    assert config["recipe"] == json.loads(json.dumps(dataclasses.asdict(recipe)))
    assert (config["text"], config["torch"]) == ("story.txt", torch.__version__)
    assert going.folder.recipe == recipe
    assert going.folder.tokenizer.to_str() == going.corpus.tokenizer.to_str()


def test_samples_repeat_and_continue_their_prompt(small, tmp_path):
    going, _ = run(small(), tmp_path, most=5)
    assert going.sample("the ") == going.sample("the ")
    assert going.sample("the ").startswith("the ")
