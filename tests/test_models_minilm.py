"""MiniLM from heedful's own modules is MiniLM: tokens, states and weights are those of transformers."""

import importlib.util
from pathlib import Path

import pytest
import torch

from heedful import models
from heedful.models import CATALOGUE
from heedful.models.reading import TextRefused, Token

pytestmark = pytest.mark.skipif(not CATALOGUE["minilm"].installed, reason=CATALOGUE["minilm"].install)

ANIMAL = "The animal didn't cross the street because it was too tired."


@pytest.fixture(scope="module")
def reader():
    return models.load("minilm")


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="compares with transformers")
@pytest.mark.filterwarnings("default")  # what transformers warns of is not ours to fix
def test_it_equals_transformers_on_a_padded_batch(reader):
    from transformers import AutoTokenizer, BertModel

    folder = Path(CATALOGUE["minilm"].checked_files()[0]).parent
    theirs = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    texts = [ANIMAL, "Unbelievably, it wasn't."]
    batch = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    for text, ids, keep in zip(texts, batch["input_ids"], batch["attention_mask"], strict=True):
        assert [token.id for token in reader.tokenize(text)] == ids[keep.bool()].tolist()

    with torch.no_grad():
        expected = theirs(**batch, output_hidden_states=True, output_attentions=True)
        found = reader.model(batch["input_ids"], batch["attention_mask"].bool())
    real = batch["attention_mask"].bool()
    assert len(found.states) == len(expected.hidden_states) == 7
    for ours, reference in zip(found.states, expected.hidden_states, strict=True):
        torch.testing.assert_close(ours[real], reference[real], rtol=0, atol=1e-5)
    assert len(found.weights) == len(expected.attentions) == 6
    for ours, reference in zip(found.weights, expected.attentions, strict=True):
        assert ours.shape == reference.shape == (2, 12, *real.shape[1:], *real.shape[1:])
        rows = real[:, None].expand(reference.shape[:3])
        torch.testing.assert_close(ours.full()[rows], reference[rows], rtol=0, atol=1e-5)


def test_it_looks_at_the_animal(reader):
    reading = reader.read(ANIMAL)
    words = [token.text for token in reading.tokens]
    weights = reading.weights[3]
    assert weights.shape == (1, 12, 16, 16)
    assert float(weights[0, 1, words.index("it"), words.index("animal")]) == pytest.approx(0.677, abs=0.001)
    assert (reading.model, reading.text, reading.causal) == ("minilm", ANIMAL, False)


def test_a_text_is_not_padded(reader):
    """The published tokenizer.json pads to 128 tokens and cuts there; a padded run would look at padding."""
    assert len(reader.tokenize("Two words")) == 4
    assert len(reader.tokenize("word " * 300)) == 302


def test_tokens_are_spelled_as_the_text_spells_them(reader):
    tokens = reader.tokenize("Naïve 🙂 tokenizers [SEP]")
    assert tokens == (
        Token("[CLS]", 101, 0, 0, special=True, continues=False),
        Token("Naïve", 15743, 0, 5, special=False, continues=False),
        Token("🙂", 100, 6, 7, special=False, continues=False),
        Token("token", 19204, 8, 13, special=False, continues=False),
        Token("izer", 17629, 13, 17, special=False, continues=True),
        Token("s", 2015, 17, 18, special=False, continues=True),
        Token("[SEP]", 102, 19, 24, special=True, continues=False),
        Token("[SEP]", 102, 0, 0, special=True, continues=False),
    )


def test_the_longest_text_is_read_and_a_longer_one_refused(reader):
    assert reader.read("word " * 510).weights[0].shape == (1, 12, 512, 512)
    with pytest.raises(TextRefused) as caught:
        reader.read("word " * 511)
    assert str(caught.value) == (
        "513 tokens, special ones included, and minilm reads at most 512. Its limit is reached after 2550 of 2555 "
        "characters: shorten the text, or give it in parts."
    )


@pytest.mark.parametrize("text", ["", "  \n", "\u200b", "[SEP]"])
def test_a_text_without_tokens_is_refused(reader, text):
    with pytest.raises(TextRefused) as caught:
        reader.read(text)
    assert str(caught.value) == f"{text!r} holds nothing that minilm reads as text; give it some words."
