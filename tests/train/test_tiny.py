"""The model inside the package: small, documented, and with the heads that it is there to show."""

import pytest
import torch

from heedful import heads
from heedful.train.batches import Batches
from heedful.train.health import examine
from heedful.train.loading import load_model, tiny, tiny_folder
from heedful.train.run_folder import RunFolder
from heedful.train.text import load_corpus

# In none of Jane Austen's novels, and said more than once, so that there is something to copy.
UNSEEN = [
    2 * "A grey heron waits at the weir. ",
    3 * "The tram was late again today. ",
    2 * "A grey heron waits beside the frozen weir, and nobody on the tram looks up. ",
]


@pytest.fixture(scope="module", params=UNSEEN, ids=["heron", "tram", "both"])
def reading(request):
    return tiny().read(request.param)


def classes(reading):
    """The class of each head on a reading, by (layer, head)."""
    layers = [heads.classify(weights, reading.tokens) for weights in reading.weights]
    return {(layer, head): found for layer, every in enumerate(layers) for head, found in enumerate(every)}


def test_it_is_small():
    files = [path for path in tiny_folder().iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 3_000_000
    assert {path.name for path in files} == {
        "best.safetensors",
        "config.json",
        "metrics.jsonl",
        "tokenizer.json",
    }


def test_it_says_how_it_was_made():
    folder = RunFolder(tiny_folder())
    corpus = load_corpus()
    assert folder.config["text_sha256"] == corpus.sha256
    assert folder.recipe.text == ()
    assert isinstance(folder.recipe.seed, int)
    assert folder.tokenizer.to_str() == corpus.tokenizer.to_str()


def test_its_held_out_loss_is_the_recorded_one_and_far_below_a_table_of_pairs():
    folder, corpus = RunFolder(tiny_folder()), load_corpus()
    held_out = Batches(corpus.held_out, corpus.begin, folder.recipe.context, folder.recipe.batch)
    loss, _ = examine(load_model(tiny_folder()), held_out, folder.recipe.eval_windows)
    assert loss == pytest.approx(min(entry["loss"] for entry in folder.metrics("evaluation")), abs=1e-3)
    assert loss < folder.config["bigram_loss"] - 0.5


def test_a_head_looks_at_the_previous_token_of_a_text_it_never_saw(reading):
    found = [each for each in classes(reading).values() if each.label == "previous token"]
    assert max(each.score for each in found) > 0.5


def test_a_later_head_copies_what_came_next_before(reading):
    found = classes(reading)
    previous = [layer for (layer, _), each in found.items() if each.label == "previous token"]
    induction = [
        (layer, each.score, each.chance) for (layer, _), each in found.items() if each.label == "induction"
    ]
    assert any(
        layer > min(previous) and score > 0.4 and score > 4 * chance for layer, score, chance in induction
    )


def test_said_again_a_text_is_easier(reading):
    """By a fifth where the echo is within the distances met in training; beyond them there is little left of it."""
    model, tokens = load_model(tiny_folder()), torch.tensor([[token.id for token in reading.tokens]])
    losses = torch.nn.functional.cross_entropy(model(tokens).logits[0, :-1], tokens[0, 1:], reduction="none")
    half = len(losses) // 2
    met = half < RunFolder(tiny_folder()).recipe.context
    assert losses[half:].mean() < (0.8 if met else 1.0) * losses[:half].mean()


def test_its_metrics_tell_of_every_head():
    folder = RunFolder(tiny_folder())
    entries = list(folder.metrics("evaluation"))
    assert [entry["step"] for entry in entries] == list(
        range(0, folder.recipe.steps + 1, folder.recipe.eval_every)
    )
    for entry in entries:
        sizes = [len(layer) for layer in entry["health"]["heads"]]
        assert sizes == [folder.recipe.num_heads] * folder.recipe.num_layers
