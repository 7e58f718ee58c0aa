"""The kernel as autograd sees it."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..._call import Call, TensorBias
from ..._checks import tensors_of
from ..._rows import Rows
from ...reductions import Entropy, LogSumExp, Received, Reduction
from .. import plain
from .._checked import checked_biases
from .._exact import all_finite
from .._travel import Parcel, take_apart
from ._run import Answers, Wanted, backward, forward

REDUCTIONS: dict[str, Reduction] = {
    "logsumexp": LogSumExp(),
    "entropy": Entropy(),
    "received_sum": Received(),
}
STATE: tuple[str, ...] = ("row_state", "logsumexp", "topk_key")  # answers that the gradient needs


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
    checked = checked_biases(call)
    if not recorded:
        return forward(checked, wanted)
    names = (
        *wanted.names,
        *(("topk_weight", "topk_key") if wanted.topk else ()),
        *(("output",) if wanted.output else ()),
    )
    parcel, tensors = take_apart(call)
    found = Attend.apply(checked, parcel, wanted, names, *tensors)
    return dict(zip(names, found, strict=True))


class Attend(torch.autograd.Function):
    """The kernel, and its gradient: the weights are made again, panel by panel."""

    @staticmethod
    def forward(
        ctx: Any, call: Call, parcel: Parcel, wanted: Wanted, names: tuple[str, ...], *tensors: Tensor
    ) -> tuple[Any, ...]:
        more = dict.fromkeys(
            (*wanted.names, "row_state", *(("logsumexp",) if call.sinks is not None else ()))
        )
        found = forward(call, replace(wanted, names=tuple(more)))
        ctx.parcel, ctx.names = parcel, names
        ctx.save_for_backward(*tensors, *map(found.get, STATE))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(found[name] for name in names if name in ("received_count", "topk_key"))
        )
        return tuple(found[name] for name in names)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        given = zip(ctx.names, grads, strict=True)
        asked = {name: grad.resolve_neg() for name, grad in given if grad is not None}
        needed = ctx.needs_input_grad[4:]
        if not asked:
            return None, None, None, None, *(None for _ in needed)
        saved = ctx.saved_tensors  # a checkpoint gives them once
        call, tensors = ctx.parcel.reopen(saved[: len(needed)])
        state = saved[len(needed) :]
        wanted = [x for x, each in zip(tensors, needed, strict=True) if each]
        kept = {name: x for name, x in zip(STATE, state, strict=True) if x is not None}
        # A derivative of the gradient is left to the panels. What a mask hides may hold NaN: it shows in the gradient,
        # and the panels know how to keep it out.
        found = None if torch.is_grad_enabled() else _by_kernel(call, wanted, asked, kept)
        if found is None or not (all(map(all_finite, found.values())) or all(map(all_finite, call.tensors))):
            found = _by_panels(call, wanted, asked, kept.get("topk_key"))
        return None, None, None, None, *(found.get(id(x)) for x in tensors)


def _by_kernel(call: Call, needed: list[Tensor], grads: Answers, kept: Answers) -> dict[int, Tensor]:
    """The gradients of the needed tensors, by their ids."""
    ids = set(map(id, needed))
    places = {"query": call.query, "key": call.key, "value": call.value, "row": call.sinks}
    if "topk_weight" in grads:
        grads = grads | {"topk_key": kept["topk_key"]}
    wanted = [name for name, x in places.items() if id(x) in ids]
    tables = {id(x): x for term in call.bias for x in tensors_of(term) if id(x) in ids}
    totals = {name: torch.zeros(x.shape, dtype=torch.float32, device=x.device) for name, x in tables.items()}
    add = partial(_add_to_biases, call, totals) if totals else None
    found = backward(call, kept["row_state"], grads, wanted, add)
    if "row" in found:
        assert call.sinks is not None
        share = (call.sinks.float()[:, None] - kept["logsumexp"]).exp()
        found["row"] = (share * found["row"]).sum((0, 2)).to(call.sinks.dtype)
    biases = {name: total.to(tables[name].dtype) for name, total in totals.items()}
    return {id(places[name]): grad for name, grad in found.items()} | biases


def _add_to_biases(call: Call, totals: dict[int, Tensor], rows: Rows, logits: Tensor) -> None:
    """Carry the gradient of the logits of some rows on to the tensors that biases are made of."""
    for term in call.bias:
        tensors = [x for x in tensors_of(term) if id(x) in totals]
        if isinstance(term, TensorBias) and tensors and rows.is_view:
            part = rows.of(totals[id(term.tensor)])
            part += logits.sum_to_size(part.shape)
        elif tensors:
            with torch.enable_grad():
                bias = term.bias(rows, range(rows.num_keys))
                found = torch.autograd.grad(bias, tensors, logits.sum_to_size(bias.shape).to(bias.dtype))
            for x, grad in zip(tensors, found, strict=True):
                totals[id(x)] += grad


def _by_panels(
    call: Call, needed: list[Tensor], grads: Answers, topk_key: Tensor | None
) -> dict[int, Tensor | None]:
    """The same by panels, which have every derivative, also that of the gradient."""
    again = torch.is_grad_enabled()
    names = [name for name in grads if name != "output"]
    known = REDUCTIONS if topk_key is None else REDUCTIONS | {"topk_weight": AtKeys(topk_key)}
    with torch.enable_grad():
        result = plain(call, tuple(known[name] for name in names), "output" in grads)
    outputs: dict[str, Any] = dict(zip(names, result.answers, strict=True)) | {"output": result.output}
    found = torch.autograd.grad(
        [outputs[name] for name in grads],
        needed,
        list(grads.values()),
        create_graph=again,
        allow_unused=True,
    )
    return {id(x): grad for x, grad in zip(needed, found, strict=True)}
