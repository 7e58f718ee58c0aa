"""The folder of a run: what was asked, what happened step by step, and the weights."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from heedful.train.checkpoint import put
from heedful.train.problems import NoRun, RunProblem
from heedful.train.recipe import Recipe

LATEST = "latest"


@dataclass(frozen=True)
class RunFolder:
    """One folder per run.

    config.json        the recipe, the text's checksum, versions
    tokenizer.json     for the `tokenizers` library
    metrics.jsonl      one line per update, and one per evaluation
    last.safetensors   the newest checkpoint, with the optimizer's state
    best.safetensors   the weights with the lowest held-out loss
    *.png, *.svg       the plots
    """

    path: Path

    @classmethod
    def create(cls, parent: Path, recipe: Recipe, tokenizer: Tokenizer, facts: dict[str, Any]) -> "RunFolder":
        """Make a new folder in `parent`, and let `parent/latest` point to it."""
        path = _new_folder(parent)
        folder = cls(path)
        put(path / "config.json", _pretty({"recipe": recipe.to_json(), **facts}))
        put(path / "tokenizer.json", tokenizer.to_str(pretty=True).encode())
        _point_latest_to(path)
        return folder

    @classmethod
    def find(cls, path: Path) -> "RunFolder":
        """The folder of a run that exists: its own path, or a path that ends in `latest`.

        Raises:
            NoRun: It is no run.
        """
        if path.name == LATEST and not path.exists():
            runs = sorted(path.parent.glob("*/config.json"), key=lambda config: config.stat().st_mtime)
            if not runs:
                raise NoRun(f"There is no run in {path.parent} yet. Start one: heedful train")
            path = runs[-1].parent
        if not (path / "config.json").is_file():
            raise NoRun(f"{path} is not the folder of a run: it has no config.json.")
        return cls(path.resolve())

    @property
    def last(self) -> Path:
        """The newest checkpoint."""
        return self.path / "last.safetensors"

    @property
    def best(self) -> Path:
        """The weights with the lowest held-out loss."""
        return self.path / "best.safetensors"

    @property
    def config(self) -> dict[str, Any]:
        """What `create` was given: `recipe` and the facts."""
        file = self.path / "config.json"
        try:
            return json.loads(file.read_text())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RunProblem(f"{file} is damaged: {error}.") from None

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        try:
            return Recipe.from_json(self.config["recipe"])
        except (KeyError, TypeError) as error:
            raise RunProblem(
                f"{self.path / 'config.json'} holds no recipe that this version knows: {error}."
            ) from None

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the run."""
        return Tokenizer.from_file(str(self.path / "tokenizer.json"))

    def log(self, **entry: Any) -> None:
        """Add a line to metrics.jsonl."""
        try:
            with (self.path / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise RunProblem(
                f"{self.path / 'metrics.jsonl'} can't be written: {error.strerror}.\n"
                f"Free some space, then continue from the last checkpoint: heedful train --resume {self.path}"
            ) from error

    def metrics(self, kind: str | None = None) -> Iterator[dict[str, Any]]:
        """The lines of metrics.jsonl, or those of one kind: "update" or "evaluation"."""
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return
        for line in file.read_text().splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                return  # the last line of a run that was killed while writing it
            if kind in (None, entry["kind"]):
                yield entry

    def forget_after(self, step: int) -> None:
        """Drop the lines that a run writes again when it continues after `step` updates."""
        kept = [json.dumps(entry) + "\n" for entry in self.metrics() if entry["step"] <= step]
        put(self.path / "metrics.jsonl", "".join(kept).encode())


def _new_folder(parent: Path) -> Path:
    """A folder named by the time, with a number after it where that name is taken."""
    stamp = time.strftime("%Y-%m-%d-%H%M%S")
    number = 1
    while True:
        path = parent / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise RunProblem(f"The folder {path} can't be made: {error.strerror}.") from None
        else:
            return path


def _point_latest_to(path: Path) -> None:
    link = path.parent / LATEST
    if link.exists() and not link.is_symlink():
        return
    draft = path.parent / f".{LATEST}.draft"
    try:
        draft.unlink(missing_ok=True)
        draft.symlink_to(path.name, target_is_directory=True)
        draft.replace(link)
    except OSError:
        draft.unlink(
            missing_ok=True
        )  # no links here, as often on Windows: `find` takes the newest run instead


def _pretty(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
