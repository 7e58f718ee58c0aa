"""`heedful see --model FOLDER` for models of transformers: what is shown, and what is refused with a reason."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel

import tiny_models
from heedful import models
from heedful.view.build import picture_of

transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[BOS]", "[EOS]", "[UNK]", *"the cat sat on a mat and it was warm".split()]
TEXT = "the cat sat on the mat and it was warm"


def tokenizer() -> "transformers.PreTrainedTokenizerFast":
    """Words, with a mark in front."""
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[BOS] $A", special_tokens=[("[BOS]", WORDS.index("[BOS]"))]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", bos_token="[BOS]", pad_token="[PAD]"
    )


def saved(name: str, folder: Path) -> Path:
    """The tiny model and a tokenizer in a folder."""
    return keep(tiny_models.make(name, implementation="eager"), folder / name)


def keep(model: "transformers.PreTrainedModel", path: Path) -> Path:
    model.save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("name", "causal"),
    [("llama", True), ("mistral", True), ("gpt_oss", True), ("gpt2", True), ("bert", False)],
)
def test_weights_and_predictions_are_those_of_the_model(name: str, causal: bool, tmp_path: Path) -> None:
    """Grouped heads, windows, sinks and both directions, against "eager"."""
    reading = models.load(str(saved(name, tmp_path))).read(TEXT)
    assert (reading.model, reading.causal) == (name, causal)
    assert [token.text for token in reading.tokens] == ["[BOS]", *TEXT.split()]
    eager = tiny_models.make(name, implementation="eager")
    ids = torch.tensor([[token.id for token in reading.tokens]])
    with torch.no_grad():
        expected = eager(ids, output_attentions=True)
    for ours, attention in zip(reading.weights, expected.attentions, strict=True):
        torch.testing.assert_close(ours.full(), attention, atol=1e-5, rtol=1e-4)
    if causal:
        likely = expected.logits[0, -1].softmax(-1).topk(5)
        found = [each.probability for each in reading.following]
        assert found == pytest.approx(likely.values.tolist(), abs=1e-5)
    else:
        assert reading.following == ()
    picture = picture_of(reading.without_sink())
    assert picture.places["first"] == 0


def test_a_layer_that_stands_for_several_is_seen_each_time(tmp_path: Path) -> None:
    reading = models.load(str(saved("albert", tmp_path))).read(TEXT)
    assert [tuple(each.shape) for each in reading.weights] == 2 * [(1, 4, 11, 11)]


def test_a_model_that_was_saved_to_give_matrices(tmp_path: Path) -> None:
    """transformers runs such a model with "eager" alone, whose attention cannot be seen; here it gives none."""
    path = saved("llama", tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"output_attentions": True}))
    assert len(models.load(str(path)).read(TEXT).weights) == 2


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_the_encoder_of_a_pair_reads_the_text(name: str, tmp_path: Path) -> None:
    reading = models.load(str(saved(name, tmp_path))).read(TEXT)
    assert (len(reading.weights), reading.causal, reading.following) == (2, False, ())


def test_the_longest_text(tmp_path: Path) -> None:
    """RoBERTa numbers positions from the padding's number on, so two of its 64 are never used."""
    assert models.load(str(saved("gpt2", tmp_path))).max_tokens == 64
    config = transformers.RobertaConfig(**tiny_models.ENCODER | {"pad_token_id": 1})
    reader = models.load(str(keep(transformers.RobertaModel(config), tmp_path / "roberta")))
    assert reader.max_tokens == 62
    assert reader.read(" ".join(61 * ["cat"])).weights[0].shape == (1, 4, 62, 62)


def bloom() -> "transformers.PreTrainedModel":
    return transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)
    )


def mamba() -> "transformers.PreTrainedModel":
    return transformers.MambaModel(
        transformers.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2)
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            bloom,
            "BloomForCausalLM cannot be looked at: 2 of its modules, such as 'transformer.h.0.self_attention', compute "
            "their attention where it cannot be seen, with a softmax of their own or a kernel from outside PyTorch.",
        ),
        (mamba, "MambaModel has no attention that can be seen."),
        (lambda: tiny_models.make("vit"), "{} reads pixel_values, not a text: ViTModel."),
        (
            lambda: tiny_models.make("whisper"),
            "{} reads input_features, not a text: WhisperForConditionalGeneration.",
        ),
    ],
)
def test_a_model_whose_attention_cannot_be_seen(make, message: str, tmp_path: Path) -> None:
    path = keep(make(), tmp_path / "model")
    with pytest.raises(models.ModelUnreadable) as caught:
        models.load(str(path)).read(TEXT)
    assert str(caught.value) == message.format(path)


def test_files_that_are_not_enough(tmp_path: Path) -> None:
    path = saved("llama", tmp_path)
    bare = tmp_path / "bare"
    tiny_models.make("llama").save_pretrained(bare)
    with pytest.raises(models.ModelUnreadable) as caught:
        models.load(str(bare))
    assert str(caught.value) == (
        f"{bare} has a model, but no tokenizer to read a text with. Save it there too: "
        f"tokenizer.save_pretrained({str(bare)!r})."
    )
    shorter = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**tiny_models.DECODER | {"num_hidden_layers": 1})
    )
    shorter.save_pretrained(path / "short")
    shutil.copy(path / "short" / "model.safetensors", path)
    with pytest.raises(models.ModelUnreadable) as caught:
        models.load(str(path))
    assert str(caught.value) == (
        f"{path} is incomplete: its files lack 9 tensors of LlamaForCausalLM, such as "
        "model.layers.1.input_layernorm.weight. What is lacking would be random numbers."
    )
    (path / "model.safetensors").write_bytes(b"half a file")
    with pytest.raises(models.ModelUnreadable) as caught:
        models.load(str(path))
    assert str(caught.value).startswith(f"{path} cannot be loaded. SafetensorError: ")
    (path / "config.json").write_text(json.dumps({"model_type": "nobody_knows"}))
    with pytest.raises(models.ModelUnreadable) as caught:
        models.load(str(path))
    assert str(caught.value).startswith(f"{path} cannot be loaded. ValueError: ")
    assert "nobody_knows" in str(caught.value)


def test_without_transformers_there_is_the_line_that_installs_it(tmp_path: Path, monkeypatch) -> None:
    path = saved("llama", tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(models.ModelNotInstalled) as caught:
        models.load(str(path))
    assert str(caught.value) == (
        f"{path} is a model for transformers. Install that with:\n  pip install transformers"
    )


def test_a_downloaded_model_goes_by_its_name_and_the_command_is_quiet(tmp_path: Path) -> None:
    home = tmp_path / "hub" / "models--someone--small"
    shutil.copytree(saved("llama", tmp_path), home / "snapshots" / "abc")
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("abc")
    done = subprocess.run(
        [sys.executable, "-m", "heedful", "see", TEXT, "--model", "someone/small"],
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HOME": str(tmp_path), "PYTHONIOENCODING": "utf-8"},
        timeout=110,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("someone/small   2 layers × 4 heads   11 tokens   causal")  # noqa: RUF001
    assert "What follows the text, as someone/small expects it" in done.stdout
