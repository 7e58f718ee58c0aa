"""Which reductions the kernel answers, and how its answers become theirs."""

import torch

from ..._call import Call
from ...reductions import (
    Entropy,
    Full,
    LogSumExp,
    Mass,
    MaxLogit,
    MeanDistance,
    Received,
    Reduction,
    SinkShare,
    TopK,
)
from ...reductions._protocol import value_norms
from ._run import Answers

# What the gradient reaches; a reduction that needs more is asked elsewhere where a gradient is recorded.
DIFFERENTIABLE = frozenset(("logsumexp", "entropy", "received_sum", "received_count"))


def names(reduction: Reduction) -> tuple[str, ...] | None:
    """The answers of the kernel that a reduction is made of; None: the kernel does not know it."""
    kind = type(reduction)
    if isinstance(reduction, Received) and kind is Received:
        return {
            "sum": ("received_sum",),
            "max": ("received_max",),
            "mean": ("received_sum", "received_count"),
        }[reduction.how]
    return {
        LogSumExp: ("logsumexp",),
        SinkShare: ("logsumexp",),
        MaxLogit: ("max_logit",),
        Entropy: ("entropy",),
        Mass: ("mass",),
        MeanDistance: ("mean_distance",),
        TopK: ("topk",),
        Full: ("weights",),
    }.get(kind)


def answer(reduction: Reduction, found: Answers, call: Call) -> object:
    """The answer of a reduction from those of the kernel."""
    match reduction:
        case TopK():
            total = found["topk_weight"][..., : reduction.k], found["topk_key"][..., : reduction.k]
        case Received():
            total = found["received_max" if reduction.how == "max" else "received_sum"]
            if reduction.by_value_norm:
                norms = value_norms(call.value.float())
                norms = norms.repeat_interleave(total.shape[1] // max(norms.shape[1], 1), 1)
                total = total * norms.masked_fill(total == 0, 0)
            if reduction.how == "mean":
                total = total, found["received_count"]
        case MaxLogit(per="head"):
            L = call.query.shape[2]
            rows = found["max_logit"]
            total = rows.amax(-1) if L else rows.new_full(rows.shape[:2], -torch.inf)
        case _:
            known = names(reduction)
            assert known is not None
            total = found[known[0]]
    return reduction.finish(total, call)
