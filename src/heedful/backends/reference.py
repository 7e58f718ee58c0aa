"""The definition: dense, for any device and dtype, differentiable to any order. Reads like the post.

Memory is L x S per head. Every other backend is tested against this one in float64.
"""

import torch
from torch import Tensor

from .._call import Call
from ..reductions import Panel, Reduction
from . import Result
from ._dropout import keep_scale
from ._exact import lifted, scores, weighted_sum

NAME = "reference"


def refusals(call: Call) -> list[str]:
    """Nothing is refused."""
    return []


def run(call: Call, reductions: tuple[Reduction, ...] = (), need_output: bool = True) -> Result:
    """Build the weights, sum the values, answer the questions."""
    panel, visible = attend(call)
    output = None
    if need_output:
        kept = panel.weights * keep_scale(call, panel.rows, panel.keys)
        output = weighted_sum(kept, _per_query_head(call, call.value), visible).to(call.query.dtype)
    return Result(output, tuple(reduction.finish(reduction.panel(panel), call) for reduction in reductions))


def attend(call: Call) -> tuple[Panel, Tensor]:
    """All the weights of a call as one panel, and who may see whom."""
    S = call.key.shape[2]
    query, key = call.query.to(call.dtype), _per_query_head(call, call.key)
    logits = scores(query * call.scale, key)
    if call.softcap is not None:
        logits = call.softcap * torch.tanh(logits / call.softcap)
    for term in call.bias:
        logits = logits + lifted(term.bias(call.rows, range(S)).to(call.dtype))

    visible = _visible(call, logits)
    logits = torch.where(visible, logits, -torch.inf)
    if call.sinks is not None:
        sink = call.sinks.to(call.dtype)[:, None, None].expand(*logits.shape[:-1], 1)
        logits = torch.cat([logits, sink], -1)

    nobody = (logits == -torch.inf).all(-1, keepdim=True)
    seen = logits.masked_fill(nobody, 0)
    # The largest logit less the log of its weight: unlike those of torch.logsumexp, gradients are right for -1e9 too.
    logsumexp = (seen - seen.log_softmax(-1)).gather(-1, seen.argmax(-1, keepdim=True))
    logsumexp = logsumexp.masked_fill(nobody, -torch.inf).squeeze(-1)
    logits, weights = logits[..., :S], seen.softmax(-1).masked_fill(nobody, 0)[..., :S]

    panel = Panel(
        weights,
        logits.clamp(min=torch.finfo(logits.dtype).min),
        logsumexp,
        call.rows,
        (range(S),),
        call.value.to(call.dtype),
        call,
        (slice(0, logits.shape[0]), slice(0, logits.shape[1]), slice(0, logits.shape[2])),
    )
    return panel.edited_by(call.edits), visible


def _visible(call: Call, logits: Tensor) -> Tensor:
    """Who may see whom, (B, H, L, S): the mask, less what a bias of -inf forbids."""
    keys = range(call.key.shape[2])
    visible = torch.ones_like(logits, dtype=torch.bool)
    if call.mask is not None:
        visible = visible & call.mask.seen(call.rows, keys)
    for term in call.bias:
        visible = visible & (term.bias(call.rows, keys) != -torch.inf)
    return visible


def _per_query_head(call: Call, x: Tensor) -> Tensor:
    """Key or value (B, G, S, E) repeated for the query heads that share it: heads 0..r-1 use group 0, and so on."""
    G = x.shape[1]
    return x.to(call.dtype).repeat_interleave(call.query.shape[1] // G if G else 1, 1)
