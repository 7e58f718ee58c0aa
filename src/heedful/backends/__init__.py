"""Who computes a call.

Each backend is a module with:

    NAME                                            what users call it
    refusals(call) -> list[str]                     why it cannot take the call, one sentence each
    run(call, reductions, need_output) -> Result    the output, and the answers in the same pass

A backend never imports another; what it leaves, it leaves to `plain`. It is chosen without looking at the reductions,
so asking cannot change the answer.
"""

from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._call import Call
from .._checks import autocast_dtype, readable
from ..masks import Dense
from ..reductions import ByKey, Full, QueryRows, Reduction

ORDER = ("native", "panels")
NAMES = (*ORDER, "reference")


class Backend(Protocol):
    """What runs a call: a module of this folder."""

    @property
    def NAME(self) -> str:
        """What users call it."""
        ...

    def refusals(self, call: Call) -> list[str]:
        """Why it cannot take the call, one sentence each."""
        ...

    def run(self, call: Call, reductions: tuple[Reduction, ...] = ..., need_output: bool = ...) -> "Result":
        """The output, and the answers in the same pass."""
        ...


class Result(NamedTuple):
    """output (B, H, L, Ev) in the dtype of the query, or None; one answer per reduction."""

    output: Tensor | None
    answers: tuple[Any, ...]


@cache
def load(name: str) -> Any:
    """The backend of that name."""
    return import_module(f".{name}", __name__)


def choose(call: Call, backend: str) -> Backend:
    """The backend asked for, or the first that takes the call; an error with every reason when there is none."""
    if backend != "auto" and backend not in NAMES:
        raise ValueError(f"backend must be 'auto' or one of {', '.join(map(repr, NAMES))}, got {backend!r}.")
    refused = []
    for name in ORDER if backend == "auto" else (backend,):
        module = load(name)
        reasons = module.refusals(call)
        if not reasons:
            return module
        refused.append(f"  {name}: {'; '.join(reasons)}")
    raise NotImplementedError(f"backend={backend!r} cannot take this call.\n" + "\n".join(refused))


def able(backend: Backend, call: Call) -> Backend:
    """The backend, or another one for `Weights` that were mapped since: to float64, say, or under vmap."""
    return load("panels") if backend.refusals(call) else backend


def plain(call: Call, reductions: tuple[Reduction, ...], need_output: bool = False) -> Result:
    """What the backend that knows everything answers, and records for gradients."""
    return run(load("panels"), call, reductions, need_output)


def run(
    backend: Backend, call: Call, reductions: tuple[Reduction, ...] = (), need_output: bool = True
) -> Result:
    """Run a call on a backend. Backends may rely on S >= 1 and on autocast being off."""
    if not readable(call.query):
        return backend.run(call, reductions, need_output)
    if autocast_dtype(call.query) is not None:
        with without_autocast(call):
            return run(backend, call, reductions, need_output)
    if not call.key.shape[2]:
        return _run_without_keys(backend, call, reductions, need_output)
    return backend.run(call, reductions, need_output)


def without_autocast(call: Call) -> AbstractContextManager[Any]:
    """Operations in the dtype of their tensors, forward and backward: the call has chosen its dtype."""
    if autocast_dtype(call.query) is None:
        return nullcontext()
    return torch.autocast(call.query.device.type, enabled=False)


def _run_without_keys(
    backend: Backend, call: Call, reductions: tuple[Reduction, ...], need_output: bool
) -> Result:
    """Nothing to look at: as if there were one key that nobody sees."""
    nobody = Dense(torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=call.query.device))
    key, value = (pad(x, (0, 0, 0, 1)) for x in (call.key, call.value))
    call = replace(call, key=key, value=value, rows=replace(call.rows, num_keys=1), mask=nobody, bias=())
    output, answers = backend.run(call, tuple(map(_with_a_key, reductions)), need_output)
    return Result(output, tuple(map(_without_keys, reductions, answers)))


def _with_a_key(reduction: Reduction) -> Reduction:
    if not isinstance(reduction, ByKey):
        return reduction
    widened = copy(reduction)
    object.__setattr__(widened, "groups", pad(reduction.groups, (0, 1), value=-1))
    return widened


def _without_keys(reduction: Reduction, answer: Any) -> Any:
    """An answer less the key that was there, where it has a place for keys."""
    if type(reduction) in (Full, QueryRows):
        return answer[..., :0]
    by_key = reduction.place == "keys" and isinstance(answer, Tensor) and answer.shape[2:3] == (1,)
    return answer[:, :, :0] if by_key else answer
