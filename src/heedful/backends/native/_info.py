"""What was compiled, and what is in use: for `heedful info`, and for a report of a problem."""

from dataclasses import dataclass

import torch

from . import _library


@dataclass(frozen=True)
class Info:
    """The state of the native kernel on this machine.

    Attributes:
        built: Instruction-set levels that were compiled, slowest first.
        level: The level in use, or None.
        compiler: What compiled it, or None.
        shares_threads: Whether it computes in PyTorch's own pool of threads, or None.
        threads: How many threads a large call uses.
        reason: Why the kernel is not used at all, or None.
    """

    built: tuple[str, ...]
    level: str | None
    compiler: str | None
    shares_threads: bool | None
    threads: int
    reason: str | None


def info() -> Info:
    """What was compiled and what is in use.

    Returns:
        An `Info`; it never raises because the kernel is missing, `reason` says so.

    Cost: loads the library if nothing has yet.
    """
    built, reason, threads = tuple(_library.built()), _library.reason(), torch.get_num_threads()
    if reason is not None:
        return Info(built, None, None, None, threads, reason)
    used = _library.library()
    return Info(built, used.level, used.compiler, used.shares_threads, threads, None)
