"""Examines a target of any kind. Needs torch; the parts that only show a result don't."""

from collections.abc import Callable
from typing import Any

import torch

from heedful.checking.calling import quiet
from heedful.checking.diagnosis import UNCLEAR, Diagnosis
from heedful.checking.examination import Record
from heedful.checking.options import Options
from heedful.checking.problems import CannotCheck
from heedful.checking.targets import gpu, headline, kind_of

Progress = Callable[[str], None]


def examine(
    target: Any, options: Options, name: str | None = None, progress: Progress = lambda words: None
) -> Diagnosis:
    """Examine a target in this process, on one thread: its inputs are tiny. Warnings and seeds stay as they were."""
    title = headline(target, name) if callable(target) else str(name or target)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if not callable(target):
            raise CannotCheck(f"{title} can't be called: it is of type {type(target).__name__}.")
        with quiet():
            return examiner(target, options)(target, title, options, progress).diagnosis()
    except CannotCheck as problem:
        return Diagnosis(title, UNCLEAR, explanation=f"{problem}{gpu(str(problem))}")
    finally:
        torch.set_num_threads(threads)


def examiner(target: Any, options: Options) -> Callable[[Any, str, Options, Progress], Record]:
    """The examination for this kind of target."""
    from heedful.checking import attention, encodings, mask_builders, rotations

    kinds = {
        "attention": attention.examine,
        "positions": encodings.examine,
        "rotary": rotations.examine,
        "mask": mask_builders.examine,
        "cache": attention.examine,
    }
    return kinds[options.kind or kind_of(target)]
