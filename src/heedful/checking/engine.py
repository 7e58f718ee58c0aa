"""Examines a target of any kind. Needs torch; the parts that only show a result don't."""

from collections.abc import Callable
from typing import Any

import torch

from heedful.checking.calling import quiet
from heedful.checking.diagnosis import UNCLEAR, Diagnosis
from heedful.checking.options import Options
from heedful.checking.problems import CannotCheck
from heedful.checking.record import Record
from heedful.checking.roles import ROTATING, parameters, takes_any
from heedful.checking.search import forget
from heedful.checking.targets import forward_of, gpu, headline, kind_of

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
            raise CannotCheck(
                f"{title} can't be called: it is of type {type(target).__name__}.{methods(target)}"
            )
        known_settings(target, title, options)
        with quiet():
            return examiner(target, options)(target, title, options, progress).diagnosis()
    except CannotCheck as problem:
        return Diagnosis(title, UNCLEAR, explanation=f"{problem}{gpu(str(problem))}")
    finally:
        torch.set_num_threads(threads)
        forget()


def known_settings(target: Any, title: str, options: Options) -> None:
    """Make sure that every setting is the value of a parameter.

    Raises:
        CannotCheck: The target has no such parameter.
    """
    takers = [
        target,
        forward_of(target),
        *(getattr(target, name) for name in ROTATING if hasattr(target, name)),
    ]
    if any(takes_any(taker) for taker in takers):
        return
    known = list(dict.fromkeys(p.name for taker in takers for p in parameters(taker) if p.name != "self"))
    unknown = [name for name in options.settings if name not in known]
    if unknown:
        raise CannotCheck(
            f"{title.partition('(')[0]} has no parameter {unknown[0]!r} to set. It has: {', '.join(known) or 'none'}."
        )


def methods(target: Any) -> str:
    """A hint at what of an object could be checked instead."""
    own = [n for n in dir(type(target)) if not n.startswith("_") and callable(getattr(target, n, None))]
    if not own or type(target).__module__ == "builtins":
        return ""
    return f" One of its methods can be: add a dot and its name ({', '.join(own[:6])})."


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
