"""The weights in panels, in plain PyTorch: any device, any dtype, any reduction, any derivative, O(N) memory.

A panel is a block of query rows against all the keys they may see. It is small enough for the cache, and the weights
in it are exact. A gradient is the same fold run again.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from ..._call import Call
from ..._checks import tensors_of, transformed
from ...reductions import Reduction
from .. import Result, without_autocast
from .._checked import checked_biases, checked_edits
from .._product import suits
from .._travel import Parcel, take_apart
from . import functional
from .fold import fold
from .gradient import gradient

NAME = "panels"


def refusals(call: Call) -> list[str]:
    """Nothing is refused."""
    return []


def run(call: Call, reductions: tuple[Reduction, ...] = (), need_output: bool = True) -> Result:
    """Fold the panels of a call, recorded for autograd where a gradient may be asked."""
    given = call.query.dtype
    job = Job(_widened(call), reductions, need_output)
    if functional.usable():
        flat = functional.fold(job)
    elif transformed() or torch.compiler.is_compiling():
        flat = job.fold(buffered=False)
    elif torch.is_grad_enabled() and any(tensor.requires_grad for tensor in job.tensors):
        parcel, tensors = take_apart((job.call, reductions, need_output))
        job.call = replace(checked_biases(job.call), edits=checked_edits(call.edits))
        flat = Fold.apply(job, parcel, *tensors)
    else:
        job.call = checked_biases(job.call)
        flat = job.fold(buffered=True)
    output, *totals = tree_unflatten(list(flat), job.spec)
    answers = (reduction.finish(total, call) for reduction, total in zip(reductions, totals, strict=True))
    return Result(None if output is None else output.to(given), tuple(answers))


def _widened(call: Call) -> Call:
    """The call in the dtype of answers."""
    query, key, value = (_batched(x.to(call.dtype)) for x in (call.query, call.key, call.value))
    return replace(call, query=query, key=key, value=value)


def _batched(x: Tensor) -> Tensor:
    """`x`, copied once where a product of matrices would copy it every time, or be slow for gaps between its rows."""
    even = x.shape[0] == 1 or x.stride(0) == x.shape[1] * x.stride(1)
    dense = x.stride(3) == 1 and (x.stride(2) == x.shape[3] or not suits(x.dtype, x.device))
    return x if even and dense else x.contiguous()


class Job:
    """One fold to run: a call and what is asked of it."""

    spec: TreeSpec

    def __init__(self, call: Call, reductions: tuple[Reduction, ...], need_output: bool):
        self.call, self.reductions, self.need_output = call, reductions, need_output
        self.closed_over = tuple(x for owner in (*call.edits, *reductions) for x in tensors_of(owner))
        self.tensors = tuple({id(x): x for x in (*call.tensors, *self.closed_over)}.values())

    def fold(self, buffered: bool) -> list[Any]:
        flat, self.spec = tree_flatten(fold(self.call, self.reductions, self.need_output, buffered))
        return flat


class Fold(torch.autograd.Function):
    """The fold with a gradient that runs it again, so that nothing of size L x S is kept.

    A derivative of the gradient is taken through plain operations and does keep the panels.
    """

    @staticmethod
    def forward(ctx: Any, job: Job, parcel: Parcel, *tensors: Tensor) -> tuple[Any, ...]:
        # What is a view when it is returned could not be changed in place.
        flat = [x.clone() if x is not None and x._is_view() else x for x in job.fold(buffered=True)]
        ctx.parcel, ctx.spec = parcel, job.spec
        ctx.save_for_backward(*tensors, None, *flat[1:])  # the output may be changed in place
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(x for x in flat if x is not None and not x.dtype.is_floating_point))
        return tuple(flat)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        saved = ctx.saved_tensors  # a checkpoint gives them once
        parts, tensors = ctx.parcel.reopen(saved[: len(needed)])
        job = Job(*parts)
        with without_autocast(job.call):
            if torch.is_grad_enabled():
                found = _recorded_gradient(job, grads)
            else:
                job.spec = ctx.spec
                results = list(saved[len(needed) :])
                found = dict(zip(map(id, job.tensors), gradient(job, results, grads), strict=True))
        return None, None, *(found.get(id(x)) for x in tensors)


def _recorded_gradient(job: Job, grads: tuple[Tensor | None, ...]) -> dict[int, Tensor | None]:
    """The gradients of a job's tensors, by their ids, recorded so that a derivative can be taken of them."""
    wanted = [x for x in job.tensors if x.requires_grad]
    pairs = [(x, grad) for x, grad in zip(job.fold(buffered=False), grads, strict=True) if grad is not None]
    outputs, grads = zip(*((x, grad) for x, grad in pairs if x.requires_grad), strict=True)
    found = torch.autograd.grad(outputs, wanted, grads, create_graph=True, allow_unused=True)
    return dict(zip(map(id, wanted), found, strict=True))
