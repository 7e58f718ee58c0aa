"""Models outside the catalogue: runs of `heedful train`, and models of transformers by folder or by name."""

import json
from pathlib import Path
from typing import Any

from heedful.models import ModelUnreadable, UnknownModel
from heedful.models.reading import Reader

POSSIBLE = (
    "the folder of a run of `heedful train`, such as runs/latest; the folder of a Hugging Face model, or its name if "
    "it was downloaded before"
)


def load(name: str, known: str) -> Reader:
    """The model in a folder, or the downloaded one of that name.

    Args:
        name: A path, or a name such as "gpt2" or "owner/model". Nothing is downloaded.
        known: The names of the catalogue, for the message.

    Raises:
        UnknownModel: There is neither such a folder nor such a model in the cache, or the folder holds no model.
        ModelNotInstalled: It needs transformers, which is missing.
        ModelUnreadable: Its files are damaged or incomplete, or it is no model whose attention can be seen.
    """
    path = Path(name).expanduser()
    if path.is_file():
        raise UnknownModel(f"{name} is a file. Give the folder of the model: {path.parent}.")
    if path.is_dir():
        return _from_folder(path, _config(path))
    if path.name == "latest":
        return _run(path)
    if not _is_downloaded(name):
        raise UnknownModel(f"there is no model {name!r}. Possible: {known}; {POSSIBLE}.")
    return _pretrained(name, name)


def _from_folder(path: Path, config: dict[str, Any]) -> Reader:
    if "recipe" in config:
        return _run(path)
    if "model_type" in config:
        return _pretrained(str(path), path.resolve().name)
    raise UnknownModel(
        f"{path / 'config.json'} is neither that of a run of `heedful train` (it has no recipe) nor that of a Hugging "
        "Face model (it has no model_type)."
    )


def _config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    if not file.is_file():
        inside = next((each for each in (path / "latest", path / "runs" / "latest") if each.is_dir()), None)
        meant = "" if inside is None else f" Did you mean {inside}?"
        raise UnknownModel(f"{path} is a folder without a model: it has no config.json.{meant}")
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelUnreadable(f"{file} is damaged: {error}.") from None
    return found if isinstance(found, dict) else {}


def _run(path: Path) -> Reader:
    from heedful.train.loading import reader
    from heedful.train.problems import RunProblem

    try:
        return reader(path)
    except RunProblem as problem:
        raise ModelUnreadable(str(problem)) from None
    except Exception as error:  # tokenizers raises plain ones
        raise ModelUnreadable(f"{path / 'tokenizer.json'} cannot be read: {error}.") from None


def _is_downloaded(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:
        return False


def _pretrained(source: str, name: str) -> Reader:
    from heedful.models.pretrained import load as load_pretrained

    return load_pretrained(source, name)
