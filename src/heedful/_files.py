"""Files that are there whole or not at all, and safetensors files with a header."""

import os
from pathlib import Path

from torch import Tensor


def replace_file(path: Path, data: bytes) -> None:
    """Put a whole file in place of another, or leave that other untouched. Raises OSError."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}.")
    draft = path.with_name(f".{path.name}.draft")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def read_safetensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file by name, and its header. Raises safetensors.SafetensorError."""
    import safetensors

    with safetensors.safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the file is no dictionary)
        return tensors, file.metadata() or {}
