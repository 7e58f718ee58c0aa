"""Checkpoints: one safetensors file each, replaced in one step, so that a kill at any moment leaves a whole one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from heedful._files import read_safetensors, replace_file
from heedful.train.problems import CheckpointProblem

FORMAT = "heedful train 1"


def save(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write a checkpoint beside its place, then move it there.

    Args:
        path: Where it belongs.
        tensors: What to keep, by name.
        state: Plain data to keep with it.

    Raises:
        CheckpointProblem: The disk doesn't take it. What was at `path` is untouched.

    Cost:
        The size of the tensors, once in memory and once more on the disk for a moment.
    """
    header = {"format": FORMAT, "state": json.dumps(state)}
    data = safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()}, header)
    put(path, data)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the plain data of a checkpoint.

    Raises:
        CheckpointProblem: The file is missing, damaged, or not a checkpoint of `heedful train`.
    """
    if not path.is_file():
        raise CheckpointProblem(f"There is no checkpoint {path}.")
    try:
        tensors, header = read_safetensors(path)
    except safetensors.SafetensorError as error:
        raise CheckpointProblem(f"{path} is damaged, or no safetensors file: {error}.") from None
    if header.get("format") != FORMAT:
        found = f"its format is {header['format']!r}" if "format" in header else "it doesn't name its format"
        raise CheckpointProblem(
            f"{path} is a safetensors file, but no checkpoint of `heedful train`: {found}.\n"
            f"Give the folder of a run, such as runs/latest."
        )
    return tensors, json.loads(header["state"])


def put(path: Path, data: bytes) -> None:
    """Put a file in place. Raises CheckpointProblem where the disk does not take it."""
    try:
        replace_file(path, data)
    except OSError as error:
        kept = "The one before it is untouched. " if path.exists() else ""
        raise CheckpointProblem(
            f"{path} can't be written: {error.strerror}, {len(data):,} bytes.\n"
            f"{kept}Free some space, then continue: heedful train --resume {path.parent}"
        ) from error
