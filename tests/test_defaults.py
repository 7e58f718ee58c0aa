"""torch's default dtype and device change nothing about tensors that have their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import heedful
from cases import attend, every_backend
from heedful import masks

B, H, G, L, S, E, Ev = 2, 6, 3, 7, 11, 8, 5

CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": masks.causal(), "query_start": torch.tensor([1, 4])},
    "holes": {"mask": masks.padding(torch.arange(S) % 3 != torch.tensor([[0], [1]]))},
    "padding": {"mask": masks.padding(torch.arange(S) < torch.tensor([[9], [4]]))},
    "documents": {"mask": masks.documents(torch.arange(S) // 4)},
    "either": {"mask": masks.prefix(2) | masks.window(2)},
    "bias": {"attn_bias": torch.randn(1, H, L, S), "softcap": 3.0},
    "ALiBi and sinks": {"attn_bias": heedful.Alibi(H), "sinks": torch.arange(H).float()},
    "dropout": {"dropout_p": 0.3},
    "edit": {"edit": heedful.ablate(1)},
}
QUESTIONS = (
    heedful.Entropy(),
    heedful.LogSumExp(),
    heedful.MaxLogit("head"),
    heedful.Mass(),
    heedful.MeanDistance(),
    heedful.Received("mean"),
    heedful.Received(by_value_norm=True),
    heedful.TopK(3),
    heedful.DistanceProfile(),
    heedful.Pooled(3, 4),
    heedful.ByKey(torch.arange(S) % 3),
    heedful.KeyColumns((2, 5)),
    heedful.KeyColumns(()),
    heedful.QueryRows((1, 3)),
)


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def everything(inputs: list[Tensor], **call: Any) -> list[Tensor]:
    """The output, answers in the call and after it, parts, products and gradients, flat."""
    torch.manual_seed(1)
    output, weights = attend(*inputs, reduce=QUESTIONS, **call)
    ones = inputs[0].detach().new_ones
    answers = weights.reduce(*QUESTIONS), weights.full(), weights[0, 1, 2], weights[:, :, 1:3, 2]
    products = weights @ ones(S), weights.mT @ ones(L, 3)
    loss = output.square().sum() + weights.entropy().sum()
    return tree_leaves((output, answers, products, torch.autograd.grad(loss, inputs)))


@every_backend
@pytest.mark.parametrize("default", [default_dtype, lambda: torch.device("meta")], ids=["float64", "meta"])
@pytest.mark.parametrize("name", CALLS)
def test_defaults_reach_nothing(name: str, default: Any, backend: str) -> None:
    sizes = (B, H, L, E), (B, G, S, E), (B, G, S, Ev)
    inputs = [torch.randn(size, requires_grad=True) for size in sizes]
    expected = everything(inputs, backend=backend, **CALLS[name])
    with default():
        found = everything(inputs, backend=backend, **CALLS[name])
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.dtype, mine.device) == (theirs.dtype, theirs.device)
        assert torch.equal(mine, theirs)
