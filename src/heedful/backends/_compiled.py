"""Attention inside `torch.compile` and `torch.export`, and on the meta device: one operator that they treat as a whole.

Its body runs an ordinary backend, so compiled and eager calls agree. Outside of a compiler it is not used: an operator
has no forward mode and no `torch.func`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch.utils._pytree import tree_leaves

from .. import backends
from .._call import Call, as_start
from .._checks import readable, transformed
from ..reductions import Reduction, TopK, TopKResult
from ._shapes import shapes
from ._travel import Luggage, Unpacked

TRANSFORMED = (
    "attention inside torch.compile or on the meta device has no torch.func and no forward mode. "
    "Use them outside of torch.compile, or put @torch.compiler.disable over the function that uses them."
)
AUTOGRAD_KEYS = (
    DispatchKey.AutogradFunctionality,
    DispatchKey.AutogradOther,
    DispatchKey.AutogradNestedTensor,
    DispatchKey.ADInplaceOrView,
)


@dataclass(frozen=True)
class Later:
    """A backend that is chosen when compiled code runs, or when eager code asks what compiled code returned."""

    requested: str

    @property
    def NAME(self) -> str:
        """The backend that answers for sure."""
        return "panels" if self.requested == "auto" else self.requested

    def refusals(self, call: Call) -> list[str]:
        """None: who takes the call is chosen later."""
        return []

    def run(
        self, call: Call, reductions: tuple[Reduction, ...] = (), need_output: bool = True
    ) -> backends.Result:
        """Run the call as one operator while its numbers cannot be read, at once otherwise."""
        if readable(call.query):
            if self.requested == "auto":
                chosen = backends.choose(call, "auto")
            else:
                chosen = backends.able(backends.load(self.requested), call)
            return backends.run(chosen, call, reductions, need_output)
        if transformed():
            raise NotImplementedError(TRANSFORMED)
        luggage = Luggage()
        asked = tuple(dict.fromkeys(reductions))  # an operator may not return one tensor twice
        text = luggage.pack((call, asked, need_output, self.requested))
        found = iter(attend(luggage.tensors, luggage.integers, luggage.floats, text))
        output = next(found) if need_output else None
        answers: dict[Reduction, Any] = {}
        for each in asked:
            answers[each] = TopKResult(next(found), next(found)) if isinstance(each, TopK) else next(found)
        return backends.Result(output, tuple(answers[each] for each in reductions))


@torch.library.custom_op("heedful::attend", mutates_args=())
def attend(
    tensors: Sequence[Tensor], integers: Sequence[int], floats: Sequence[float], text: str
) -> list[Tensor]:
    """The output, if it is wanted, and the answers; `text` says how the parts make a call."""
    return [x.contiguous() for x in _run(*Unpacked(tensors, integers, floats).unpack(text))]


@attend.register_fake
def _(tensors: Any, integers: Any, floats: Any, text: str) -> list[Tensor]:
    call, asked, need_output, _ = Unpacked(tensors, integers, floats).unpack(text)
    return shapes(call, asked, need_output)


def _run(call: Call, asked: tuple[Reduction, ...], need_output: bool, requested: str) -> list[Tensor]:
    start = call.rows.start
    start = as_start(start) if isinstance(start, Tensor) else start
    call = replace(call, rows=replace(call.rows, start=start, device=call.query.device))
    if isinstance(call.seed, Tensor):
        call = replace(call, seed=int(call.seed))
    result = backends.run(backends.choose(call, requested), call, asked, need_output)
    return tree_leaves([*([result.output] if need_output else []), result.answers])


@torch.library.custom_op("heedful::attend_gradient", mutates_args=())
def attend_gradient(
    tensors: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    wanted: Sequence[bool],
    integers: Sequence[int],
    floats: Sequence[float],
    text: str,
) -> list[Tensor]:
    """Gradients of the wanted tensors."""
    with _recording():
        leaves = [x.detach().requires_grad_(each) for x, each in zip(tensors, wanted, strict=True)]
        call, asked, need_output, requested = Unpacked(leaves, integers, floats).unpack(text)
        results = _run(call, asked, need_output, requested)
        pairs = [
            (x, grad) for x, grad in zip(results, grads, strict=True) if grad is not None and x.requires_grad
        ]
        leaves = [x for x in leaves if x.requires_grad]
        found = torch.autograd.grad(
            [x for x, _ in pairs], leaves, [grad for _, grad in pairs], allow_unused=True
        )
    return [
        torch.zeros_like(x, memory_format=torch.contiguous_format) if grad is None else grad.contiguous()
        for x, grad in zip(leaves, found, strict=True)
    ]


@contextmanager
def _recording() -> Iterator[None]:
    """Autograd, which torch switches off in the body of an operator, and also while a compiled graph runs."""
    include, exclude = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for key in AUTOGRAD_KEYS:  # and no others: autocast is off where its keys are excluded
        exclude = exclude.remove(key)
    with torch._C._ForceDispatchKeyGuard(include, exclude), torch.enable_grad():
        yield


@attend_gradient.register_fake
def _(tensors: Any, grads: Any, wanted: Any, integers: Any, floats: Any, text: str) -> list[Tensor]:
    return [
        torch.empty_like(x, memory_format=torch.contiguous_format)
        for x, each in zip(tensors, wanted, strict=True)
        if each
    ]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    tensors, *ctx.parts = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    wanted = ctx.needs_input_grad[0]
    found = iter(attend_gradient(list(ctx.saved_tensors), grads, wanted, *ctx.parts))
    return [next(found) if each else None for each in wanted], None, None, None


attend.register_autograd(_backward, setup_context=_setup_context)
