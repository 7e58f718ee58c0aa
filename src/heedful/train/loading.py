"""Trained models from the folders of their runs, and the one that comes with the package."""

from importlib.resources import files
from pathlib import Path

from heedful.models.reading import Reader
from heedful.train import checkpoint
from heedful.train.model import Decoder
from heedful.train.run_folder import RunFolder
from heedful.train.trainer import restore

# Beyond its context a model sees distances that it never met in training; a table of positions simply ends there.
LONGEST = 1024


def load_model(path: str | Path) -> Decoder:
    """The best weights of a run, in evaluation mode.

    Args:
        path: Folder of the run, such as `runs/latest`.

    Raises:
        RunProblem: It is no run, or its checkpoint is missing, damaged or another run's.
    """
    folder = RunFolder.find(Path(path))
    weights = folder.best if folder.best.exists() else folder.last
    tensors, _ = checkpoint.load(weights)
    if weights == folder.last:
        tensors = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    model = Decoder(folder.tokenizer.get_vocab_size(), folder.recipe)
    restore(model, tensors, weights)
    return model.eval().requires_grad_(False)


def reader(path: str | Path, name: str | None = None) -> Reader:
    """A trained model as something that reads texts, for `heedful see`.

    Args:
        path: Folder of the run.
        name: What to call it. None: the name of the folder.

    Raises:
        RunProblem: As `load_model`.
    """
    folder = RunFolder.find(Path(path))
    model = load_model(folder.path)
    longest = folder.recipe.context if folder.recipe.position == "learned" else LONGEST
    return Reader(name or folder.path.name, model, folder.tokenizer, longest, causal=True)


def tiny_folder() -> Path:
    """The run of the model that comes with the package: its weights, its recipe with the seed, what was measured."""
    return Path(str(files("heedful.train").joinpath("data/tiny")))


def tiny(*checked: Path) -> Reader:
    """The model that comes with the package.

    Args:
        checked: Its files, for a catalogue that compares their checksums first; all lie in `tiny_folder()`.
    """
    return reader(tiny_folder(), "tiny")
