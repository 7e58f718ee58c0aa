"""The files that pretrained models come in."""

from pathlib import Path
from typing import Any

from torch import Tensor


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, by name."""
    from safetensors.torch import load_file

    return load_file(path)


def read_tokenizer(path: Path) -> Any:
    """The `tokenizers.Tokenizer` of a tokenizer.json, told neither to cut nor to pad."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
