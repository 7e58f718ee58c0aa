"""SmolLM2 from heedful's modules against the same file in transformers."""

import os

import pytest
import torch

from heedful import models

TEXT = "The animal didn't cross the street because it was too"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(500),
    pytest.mark.skipif(not models.CATALOGUE["smollm2"].installed, reason=models.CATALOGUE["smollm2"].install),
]


@pytest.fixture(scope="module")
def reader():
    pytest.importorskip("gguf")
    return models.load("smollm2")


def test_logits_weights_and_tokens_are_those_of_transformers(reader) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    (path,) = models.CATALOGUE["smollm2"].checked_files()
    given = {"pretrained_model_name_or_path": os.fspath(path.parent), "gguf_file": path.name}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        **given, attn_implementation="eager", dtype=torch.float32
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(**given)
    for text in (TEXT, "In 2023, caf\u00e9s sold 1,234 cr\u00eapes.\n\nWhy?"):
        assert [token.id for token in reader.tokenize(text)] == tokenizer(text)["input_ids"]
    reading = reader.read(TEXT)
    ids = torch.tensor([[token.id for token in reading.tokens]])
    with torch.no_grad():
        expected = theirs(ids, output_attentions=True)
        logits, weights = reader.model(ids)
    torch.testing.assert_close(logits, expected.logits, atol=2e-4, rtol=1e-4)
    for ours, attention in zip(weights, expected.attentions, strict=True):
        torch.testing.assert_close(ours.full(), attention, atol=2e-5, rtol=1e-3)


def test_what_it_says_and_where_it_looks(reader) -> None:
    reading = reader.read(TEXT)
    words = [token.text.strip() for token in reading.tokens]
    best, *others = reading.following
    assert best.text == " far"
    assert best.probability == pytest.approx(0.604, abs=0.005)
    ids = torch.tensor([[token.id for token in reading.tokens]])
    with torch.no_grad():
        logits, last = (reader.model(ids, **options).logits for options in ({}, reader.options))
    assert (logits.shape, last.shape) == ((1, len(words), 49152), (1, 1, 49152))
    torch.testing.assert_close(last[:, -1], logits[:, -1], atol=1e-4, rtol=1e-4)
    likely = logits[0, -1].softmax(-1).topk(5).values.tolist()
    assert [best.probability, *(each.probability for each in others)] == pytest.approx(likely, abs=1e-4)
    assert float(reading.weights[13][0, 8, words.index("it"), words.index("animal")]) == pytest.approx(
        0.75, abs=0.005
    )
