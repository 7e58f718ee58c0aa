"""The kernel as autograd sees it."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..._call import Call, TensorBias
from ...reductions import Entropy, LogSumExp, Received
from .. import load
from ._run import Answers, Wanted, forward

REDUCTIONS = {"logsumexp": LogSumExp(), "entropy": Entropy(), "received_sum": Received()}


def attend(call: Call, wanted: Wanted, recorded: bool) -> Answers:
    """The answers of the kernel, recorded for autograd where a gradient may be asked."""
    if not recorded:
        return forward(call, wanted)
    call, tensors = _with_views(call)
    names = (*wanted.names, *(("output",) if wanted.output else ()))
    return dict(zip(names, Attend.apply(call, wanted, names, *tensors), strict=True))


def _with_views(call: Call) -> tuple[Call, tuple[Tensor, ...]]:
    """The call with tensors of its own, and these: a gradient then tells apart a tensor that is given twice."""
    query, key, value = (x.view_as(x) for x in (call.query, call.key, call.value))
    sinks = None if call.sinks is None else call.sinks.view_as(call.sinks)
    bias = tuple(
        TensorBias(term.tensor.view_as(term.tensor)) if isinstance(term, TensorBias) else term
        for term in call.bias
    )
    call = replace(call, query=query, key=key, value=value, sinks=sinks, bias=bias)
    return call, tuple({id(x): x for x in call.tensors}.values())


class Attend(torch.autograd.Function):
    """The kernel, and its gradient."""

    @staticmethod
    def forward(ctx: Any, call: Call, wanted: Wanted, names: tuple[str, ...], *tensors: Tensor) -> tuple[Any, ...]:
        found = forward(call, wanted)
        ctx.call, ctx.names = call, names
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(found[name] for name in names if name == "received_count"))
        return tuple(found[name] for name in names)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors  # raises if one was changed in place
        asked = {name: grad for name, grad in zip(ctx.names, grads, strict=True) if grad is not None}
        if not asked:
            return (None,) * (3 + len(tensors))
        return None, None, None, *_through_panels(ctx.call, tensors, asked)


def _through_panels(call: Call, tensors: tuple[Tensor, ...], grads: Answers) -> list[Tensor | None]:
    """The gradient by panels, which have every derivative, also that of the gradient."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        call, inputs = _with_views(call)
        names = [name for name in grads if name != "output"]
        result = load("panels").run(call, tuple(REDUCTIONS[name] for name in names), "output" in grads)
    outputs = dict(zip(names, result.answers, strict=True)) | {"output": result.output}
    wanted = [x for x in inputs if x.requires_grad]
    found = torch.autograd.grad(
        [outputs[name] for name in grads], wanted, list(grads.values()), create_graph=again, allow_unused=True
    )
    by_tensor = {id(x): grad for x, grad in zip(wanted, found, strict=True)}
    return [by_tensor.get(id(x)) for x in inputs]
