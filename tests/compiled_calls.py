"""The calls that are compiled and exported, by name. Run as a script, it compiles one as a process's first call."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import heedful
from heedful import masks

SIZES = {"query": (2, 4, 5, 6), "key": (2, 2, 7, 6), "value": (2, 2, 7, 3)}
IDS = torch.tensor([[0, 0, 0, 1, 1, 1, -1], [0, 0, 1, 1, 1, 2, 2]])
KEEP = torch.arange(7) < torch.tensor([[6], [7]])
TABLE = heedful.RelativeBias(4)


def tensors() -> tuple[Tensor, ...]:
    """Query, key, value, a bias and sinks."""
    generator = torch.Generator().manual_seed(5)
    shapes = (*SIZES.values(), (1, 4, 5, 7), (4,))
    return tuple(torch.randn(shape, generator=generator).requires_grad_() for shape in shapes)


def output(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return heedful.scaled_dot_product_attention(query, key, value, *args, **kwargs).output


def everything(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, sinks: Tensor) -> tuple[Tensor, ...]:
    """Answers of the same pass, and questions afterwards."""
    asked = (heedful.Entropy(), heedful.TopK(2), heedful.Received("mean"))
    given = {"attn_bias": bias, "sinks": sinks, "softcap": 2.0}
    output, weights = heedful.scaled_dot_product_attention(
        query, key, value, masks.causal(), reduce=asked, **given
    )
    return (
        output,
        weights.entropy(),
        weights.topk(2).values,
        weights.received("mean"),
        weights.received(per="kv_head", by_value_norm=True),
        weights.logsumexp(),
        weights.sink_share(),
        weights.max_logit("head"),
        weights.mean_distance(),
        weights.distance(),
        weights.pooled(2, 3),
        weights.by_key(IDS),
        weights.sum(-1),
        weights[..., -1, :],
        weights[1, 2:].entropy(),
        weights.full(),
        torch.matmul(weights, value),
        torch.matmul(weights.mT, query),
    )


CALLS: dict[str, Callable[..., Any]] = {
    "no mask": lambda q, k, v, b, s: output(q, k, v),
    "causal": lambda q, k, v, b, s: output(q, k, v, masks.causal()),
    "window": lambda q, k, v, b, s: output(q, k, v, masks.window(2, 1), query_start=torch.tensor([2, 0])),
    "prefix": lambda q, k, v, b, s: output(q, k, v, masks.causal() | masks.prefix(3), query_start=0),
    "lengths": lambda q, k, v, b, s: output(q, k, v, masks.lengths(torch.tensor([3, 6]))),
    "padding": lambda q, k, v, b, s: output(q, k, v, masks.padding(KEEP) & masks.causal()),
    "documents": lambda q, k, v, b, s: output(q, k, v, masks.documents(IDS)),
    "a tensor": lambda q, k, v, b, s: output(q, k, v, KEEP[:, None, None]),
    "combined with a tensor": lambda q, k, v, b, s: output(q, k, v, masks.causal() | KEEP[:, None, None]),
    "bias": lambda q, k, v, b, s: output(q, k, v, attn_bias=b),
    "alibi": lambda q, k, v, b, s: output(q, k, v, attn_bias=(heedful.Alibi(4), b)),
    "relative bias": lambda q, k, v, b, s: output(q, k, v, attn_bias=TABLE),
    "sinks and softcap": lambda q, k, v, b, s: output(q, k, v, sinks=s, softcap=2.0),
    "dropout": lambda q, k, v, b, s: output(q, k, v, dropout_p=0.4),
    "edits": lambda q, k, v, b, s: output(
        q, k, v, edit=[heedful.ablate(1), heedful.cut(slice(1, 3), [0, 2]), heedful.without_sink()]
    ),
    "questions": everything,
}


def gradients(function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """Of a sum over all that the function returns, with weights so that every element counts differently."""
    results = function(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    total = sum((x * torch.arange(1.0, x.numel() + 1).view(x.shape).cos()).sum() for x in results)
    return torch.autograd.grad(total, inputs, allow_unused=True)


def first_call(name: str, backend: str) -> None:
    """Compile a call before anything else has run, and compare it with the eager one, backward too."""
    function, inputs = CALLS[name], tensors()
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    torch.manual_seed(0)
    found = gradients(compiled, inputs)
    torch.manual_seed(0)
    torch.testing.assert_close(found, gradients(function, inputs))
    print("equal")


if __name__ == "__main__":
    first_call(*sys.argv[1:])
