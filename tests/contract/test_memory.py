"""A watcher that fails when a tensor of L x S is made where the docstrings promise not to."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import heedful
from cases import attend
from heedful import Weights, masks
from heedful.backends import ORDER

L = S = 1536
LIMIT = L * S // 2


class Watcher(TorchDispatchMode):
    """Remembers the largest tensor that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.name = 0, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if (
                isinstance(leaf, Tensor)
                and leaf.untyped_storage().nbytes() // leaf.element_size() > self.largest
            ):
                self.largest, self.name = leaf.untyped_storage().nbytes() // leaf.element_size(), str(func)
        return found


QUESTIONS: dict[str, Callable[[Weights], Any]] = {
    "entropy": lambda w: w.entropy(),
    "logsumexp": lambda w: w.logsumexp(),
    "max logit": lambda w: w.max_logit("head"),
    "topk": lambda w: w.topk(8).values,
    "received": lambda w: w.received(),
    "received by value norm": lambda w: w.received("max", by_value_norm=True),
    "mean distance": lambda w: w.mean_distance(),
    "distance": lambda w: w.distance(),
    "pooled": lambda w: w.pooled(16, 16),
    "by key": lambda w: w.by_key(torch.arange(S) % 5),
    "sum over keys": lambda w: w.sum(-1),
    "mean over queries": lambda w: w.mean(-2),
    "product": lambda w: w @ torch.ones(S, 4),
    "transposed product": lambda w: w.mT @ torch.ones(L, 4),
    "a row": lambda w: w[..., -1, :],
    "some rows": lambda w: w[0, :, [0, 7, L - 1]],
    "elements": lambda w: w[0, [0, 1], [5, 9], [3, 2]],
    "rows in the stream": lambda w: w.reduce(heedful.QueryRows((0, L - 1)))[0],
    "columns in the stream": lambda w: w.reduce(heedful.KeyColumns((0, 5)))[0],
}
MASKS = {
    "no mask": lambda: None,
    "causal": masks.causal,
    "window and padding": lambda: masks.window(100, 20) & masks.padding(torch.arange(S)[None] < S - 9),
    "documents": lambda: masks.documents(torch.arange(S) // 300) & masks.causal(),
}


def tensors() -> list[Tensor]:
    return [torch.randn(1, 2, n, 4, requires_grad=True) for n in (L, S, S)]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("backend", ORDER)
def test_output_and_gradients_build_no_matrix(backend: str, mask: str) -> None:
    query, key, value = tensors()
    with Watcher() as watcher:
        output, weights = attend(
            query, key, value, MASKS[mask](), backend=backend, reduce=[heedful.Entropy(), heedful.TopK(8)]
        )
        (output.sum() + weights.entropy().sum()).backward()
    assert watcher.largest < LIMIT, f"{watcher.name} made {watcher.largest} numbers, the matrix has {L * S}"


def peak(function: Callable[[], Any]) -> int:
    """The most bytes that are alive at once while a function runs, beyond those before it."""
    with torch.profiler.profile(profile_memory=True) as profile:
        function()
    sizes = (e.nbytes() for e in profile.profiler.kineto_results.events() if e.name() == "[memory]")
    return max(accumulate(sizes))


@pytest.mark.parametrize("mask", MASKS)
def test_torch_func_grad_takes_the_memory_of_autograd(mask: str) -> None:
    def loss(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        asked = [heedful.Entropy(), heedful.TopK(8)]
        output, weights = attend(query, key, value, MASKS[mask](), reduce=asked, backend="panels")
        return output.sum() + weights.entropy().sum() + weights.topk(8).values.sum()

    inputs = tensors()
    expected = peak(lambda: torch.autograd.grad(loss(*inputs), inputs))
    plain = [x.detach() for x in inputs]
    assert 0 < peak(lambda: torch.func.grad(loss, (0, 1, 2))(*plain)) < 1.2 * expected


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("backend", ORDER)
def test_a_question_and_its_gradient_build_no_matrix(backend: str, question: str) -> None:
    query, key, value = tensors()
    _, weights = attend(query, key, value, masks.causal(), backend=backend)
    with Watcher() as watcher:
        QUESTIONS[question](weights).sum().backward()
    assert watcher.largest < LIMIT, f"{watcher.name} made {watcher.largest} numbers, the matrix has {L * S}"


@pytest.mark.parametrize("backend", ORDER)
def test_grouped_heads_are_not_repeated(backend: str) -> None:
    """ComfyUI PR#15135: grouped heads with a mask wanted 45 GiB. Here keys and values are read where they are."""
    query = torch.randn(1, 8, 4, 16)
    key, value = torch.randn(1, 2, 2048, 16), torch.randn(1, 2, 2048, 16)
    with Watcher() as watcher:
        _, weights = attend(query, key, value, masks.lengths(torch.tensor([2000])), backend=backend)
        weights.topk(8)
    repeated = 8 * 2048 * 16
    assert watcher.largest < repeated // 2, f"{watcher.name} made {watcher.largest} numbers"


def test_the_watcher_sees_a_matrix() -> None:
    query, key, value = tensors()
    with Watcher() as watcher:
        attend(query, key, value, backend="reference")
    assert watcher.largest >= L * S


def test_the_watcher_sees_a_matrix_that_is_asked_for() -> None:
    _, weights = attend(*tensors(), backend="panels")
    with Watcher() as watcher:
        weights.full()
    assert watcher.largest >= L * S
