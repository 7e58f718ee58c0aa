"""The kernel as autograd sees it."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..._call import Call, TensorBias
from ..._rows import Rows
from ...reductions import Entropy, LogSumExp, Received, Reduction
from .. import plain
from .._exact import all_finite
from ._run import Answers, Wanted, backward, forward

REDUCTIONS: dict[str, Reduction] = {
    "logsumexp": LogSumExp(),
    "entropy": Entropy(),
    "received_sum": Received(),
}


@dataclass(frozen=True, eq=False)
class AtKeys(Reduction):
    """The weights of given keys of every row: (B, H, L, k), for keys (B, H, L, k); 0 for key -1."""

    keys: Tensor

    def panel(self, panel):
        keys = self.keys[panel.place]
        place = torch.searchsorted(panel.keys, keys.clamp(min=0)).clamp(max=panel.weights.shape[-1] - 1)
        return panel.weights.gather(-1, place).masked_fill(keys < 0, 0)


def attend(call: Call, wanted: Wanted, recorded: bool) -> Answers:
    """The answers of the kernel, recorded for autograd where a gradient may be asked."""
    if not recorded:
        return forward(call, wanted)
    call, tensors = _with_views(call)
    names = (
        *wanted.names,
        *(("topk_weight", "topk_key") if wanted.topk else ()),
        *(("output",) if wanted.output else ()),
    )
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
    return call, _inputs(call)


def _inputs(call: Call) -> tuple[Tensor, ...]:
    return tuple({id(x): x for x in call.tensors}.values())


class Attend(torch.autograd.Function):
    """The kernel, and its gradient: the weights are made again, panel by panel."""

    @staticmethod
    def forward(
        ctx: Any, call: Call, wanted: Wanted, names: tuple[str, ...], *tensors: Tensor
    ) -> tuple[Any, ...]:
        more = dict.fromkeys(
            (*wanted.names, "row_state", *(("logsumexp",) if call.sinks is not None else ()))
        )
        found = forward(call, replace(wanted, names=tuple(more)))
        ctx.call, ctx.names = call, names
        ctx.save_for_backward(*tensors)
        ctx.row_state, ctx.logsumexp = found["row_state"], found.get("logsumexp")
        ctx.set_materialize_grads(False)
        ctx.topk_key = found.get("topk_key")
        ctx.mark_non_differentiable(
            *(found[name] for name in names if name in ("received_count", "topk_key"))
        )
        return tuple(found[name] for name in names)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # raises if one was changed in place
        tensors = _inputs(ctx.call)
        asked = {name: grad for name, grad in zip(ctx.names, grads, strict=True) if grad is not None}
        found: list[Tensor | None] = [None] * len(tensors)
        if asked:
            # A derivative of the gradient is left to the panels.
            needed = {id(x) for x, needs in zip(tensors, ctx.needs_input_grad[3:], strict=True) if needs}
            by_panels = torch.is_grad_enabled()
            by_id = None if by_panels else _by_kernel(ctx, needed, asked)
            # What a mask hides may hold NaN: it shows in the gradient, and the panels know how to keep it out.
            if by_id is None or not all(map(all_finite, by_id.values())):
                by_id = _by_panels(ctx.call, asked, ctx.topk_key)
            found = [by_id.get(id(x)) for x in tensors]
        return None, None, None, *found


def _by_kernel(ctx: Any, needed: set[int], grads: Answers) -> dict[int, Tensor]:
    """The gradients of the tensors with these ids."""
    call: Call = ctx.call
    places = {"query": call.query, "key": call.key, "value": call.value, "row": call.sinks}
    if "topk_weight" in grads:
        grads = grads | {"topk_key": ctx.topk_key}
    wanted = [name for name, x in places.items() if id(x) in needed]
    tables = {id(x): x for term in call.bias for x in term.tensors if id(x) in needed}
    totals = {name: torch.zeros(x.shape) for name, x in tables.items()}
    add = partial(_add_to_biases, call, totals) if totals else None
    found = backward(call, ctx.row_state, grads, wanted, add)
    if "row" in found:
        assert call.sinks is not None
        share = (call.sinks.float()[:, None] - ctx.logsumexp).exp()
        found["row"] = (share * found["row"]).sum((0, 2)).to(call.sinks.dtype)
    biases = {name: total.to(tables[name].dtype) for name, total in totals.items()}
    return {id(places[name]): grad for name, grad in found.items()} | biases


def _add_to_biases(call: Call, totals: dict[int, Tensor], rows: Rows, logits: Tensor) -> None:
    """Carry the gradient of the logits of some rows on to the tensors that biases are made of."""
    for term in call.bias:
        tensors = [x for x in term.tensors if id(x) in totals]
        if isinstance(term, TensorBias) and tensors and rows.is_view:
            part = rows.of(totals[id(term.tensor)])
            part += logits.sum_to_size(part.shape)
        elif tensors:
            with torch.enable_grad():
                bias = term.bias(rows, range(rows.num_keys))
                found = torch.autograd.grad(bias, tensors, logits.sum_to_size(bias.shape).to(bias.dtype))
            for x, grad in zip(tensors, found, strict=True):
                totals[id(x)] += grad


def _by_panels(call: Call, grads: Answers, topk_key: Tensor | None) -> dict[int, Tensor | None]:
    """All gradients by panels, which have every derivative, also that of the gradient."""
    again, given = torch.is_grad_enabled(), _inputs(call)
    with torch.enable_grad():
        call, inputs = _with_views(call)
        names = [name for name in grads if name != "output"]
        known = REDUCTIONS if topk_key is None else REDUCTIONS | {"topk_weight": AtKeys(topk_key)}
        result = plain(call, tuple(known[name] for name in names), "output" in grads)
    outputs: dict[str, Any] = dict(zip(names, result.answers, strict=True)) | {"output": result.output}
    pairs = [(id(old), new) for old, new in zip(given, inputs, strict=True) if new.requires_grad]
    found = torch.autograd.grad(
        [outputs[name] for name in grads],
        [new for _, new in pairs],
        list(grads.values()),
        create_graph=again,
        allow_unused=True,
    )
    return {old: grad for (old, _), grad in zip(pairs, found, strict=True)}
