"""A short text and a recipe small enough that a whole run takes a second."""

import dataclasses

import pytest
import torch

from heedful.train.learning import new_model
from heedful.train.recipe import Recipe


@pytest.fixture(autouse=True)
def _one_thread():
    """Models this small gain nothing from a second thread, and lose much where another program computes too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


WORDS = [
    *("the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"),
    *("and", "then", "runs", "home", "to", "sleep", "until", "noon"),
]


@pytest.fixture(scope="session")
def story():
    """Sixty sentences with a little order in them, in three documents."""
    lines = [" ".join(WORDS[(7 * i + k) % len(WORDS)] for k in range(5 + i % 7)) + "." for i in range(60)]
    third = len(lines) // 3
    parts = (lines[:third], lines[third : 2 * third], lines[2 * third :])
    return "\n\n\n\n".join("\n".join(part) for part in parts) + "\n"


@pytest.fixture
def text_file(tmp_path, story):
    path = tmp_path / "story.txt"
    path.write_text(story)
    return path


@pytest.fixture
def small(text_file):
    """A function from changes to a recipe for a run of twelve updates."""
    base = Recipe(
        text=(str(text_file),),
        num_layers=2,
        num_heads=2,
        embed_dim=16,
        context=24,
        batch=3,
        steps=12,
        warmup=3,
        eval_every=5,
        eval_windows=4,
        precision="float32",
    )
    return lambda **changes: dataclasses.replace(base, **changes)


@pytest.fixture
def sizes():
    """A function from changes to the recipe of a model of three layers, for windows of 20 tokens."""
    chosen = {
        "num_layers": 3,
        "num_heads": 4,
        "embed_dim": 24,
        "context": 20,
        "batch": 5,
        "precision": "float32",
    }
    return lambda **changes: Recipe(**{**chosen, **changes})


@pytest.fixture
def model_for(sizes):
    """A function from changes to a model of 29 ids, with weights so large that attention is far from even."""

    def make(**changes):
        model = new_model(sizes(**changes), 29).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(8)
        return model

    return make
