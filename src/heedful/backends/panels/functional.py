"""The fold under `torch.func.grad` and `vjp`, with the gradient that runs the panels again.

These transforms hand a Function tensors of their own, so a job is taken apart and put together again from those. Its
gradient is a Function too: torch.func records what a gradient does, and would keep the panels.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import forward_ad
from torch.utils._pytree import TreeSpec

from .._travel import Parcel, take_apart
from .gradient import gradient

if TYPE_CHECKING:
    from . import Job


def usable() -> bool:
    """Whether every transform at work takes a gradient: `vmap` and forward mode need plain operations."""
    if not torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    return all(transform.key() == TransformType.Grad for transform in get_interpreter_stack() or ())


def fold(job: "Job") -> list[Any]:
    """What the job's own fold gives."""
    parcel, tensors = take_apart((job.call, job.reductions, job.need_output))
    if parcel.others:  # what a user wrote may close over tensors of torch.func's
        return job.fold(buffered=False)
    parts = Parts(type(job), parcel)
    flat = Fold.apply(parts, *tensors)
    job.spec = parts.spec
    return list(flat)


class Parts:
    """A job without its tensors."""

    spec: TreeSpec

    def __init__(self, make: "type[Job]", parcel: Parcel):
        self.make, self.parcel = make, parcel

    def job(self, tensors: Sequence[Tensor]) -> "Job":
        """The job with other tensors."""
        return self.make(*self.parcel.unpack(tensors))


class Fold(torch.autograd.Function):
    """The fold, as a function of the tensors of its job."""

    @staticmethod
    def forward(parts: Parts, *tensors: Tensor) -> tuple[Any, ...]:
        job = parts.job(tensors)
        flat = job.fold(buffered=True)
        parts.spec = job.spec
        return tuple(flat)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.parts, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(x for x in output if x is not None and not x.dtype.is_floating_point))
        ctx.save_for_backward(*tensors, None, *output[1:])  # the output may be changed in place

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        wanted = ctx.needs_input_grad[1:]
        if torch._C._are_functorch_transforms_active() and not usable():
            return None, *_derivative(ctx.parts, wanted, ctx.saved_tensors[: len(wanted)], grads)
        return None, *Gradient.apply(ctx.parts, wanted, *ctx.saved_tensors, *grads)


class Gradient(torch.autograd.Function):
    """The gradient of the fold, as a function of tensors, results, and gradients of the results."""

    @staticmethod
    def forward(parts: Parts, wanted: tuple[bool, ...], *flat: Tensor | None) -> tuple[Tensor | None, ...]:
        given, results, grads = _split(wanted, flat)
        tensors = [
            x.detach().requires_grad_(each) if each else x for x, each in zip(given, wanted, strict=True)
        ]
        job = parts.job(tensors)
        job.spec = parts.spec
        found = {
            id(x): grad
            for x, grad in zip(job.tensors, gradient(job, list(results), tuple(grads)), strict=True)
        }
        return tuple(found.get(id(x)) for x in tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        ctx.parts, ctx.wanted, *flat = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*flat)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        def first(flat: list[Any]) -> list[Tensor | None]:
            tensors, _, outer = _split(ctx.wanted, flat)
            return _derivative(ctx.parts, ctx.wanted, tensors, outer)

        # The results are functions of the tensors, and a derivative goes through those.
        tensors, results, outer = _split(ctx.wanted, ctx.needs_input_grad[2:])
        needed = (*tensors, *(False for _ in results), *outer)
        return None, None, *_pulled_back(first, ctx.saved_tensors, needed, grads)


def _derivative(
    parts: Parts, wanted: Sequence[bool], tensors: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The gradient by plain operations, which has every derivative and takes every transform."""
    return _pulled_back(lambda given: parts.job(given).fold(buffered=False), tensors, wanted, grads)


def _pulled_back(
    function: Callable[[list[Any]], list[Any]],
    given: Sequence[Any],
    wanted: Sequence[bool],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """From the gradients of what a function returns to those of what it is given, where they are wanted."""
    places = [n for n, each in enumerate(wanted) if each and given[n] is not None]
    asked = [n for n, grad in enumerate(grads) if grad is not None]
    if not places or not asked:
        return [None] * len(given)

    def of_wanted(*some: Tensor) -> tuple[Tensor, ...]:
        flat = list(given)
        for n, x in zip(places, some, strict=True):
            flat[n] = x
        results = function(flat)
        return tuple(results[n] for n in asked)

    pull_back = torch.func.vjp(of_wanted, *(given[n] for n in places))[1]
    found = dict(zip(places, pull_back(tuple(grads[n] for n in asked)), strict=True))
    return [found.get(n) for n in range(len(given))]


def _split(wanted: Sequence[bool], flat: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Tensors, results, and gradients of the results."""
    first = len(wanted)
    second = first + (len(flat) - first) // 2
    return flat[:first], flat[first:second], flat[second:]
