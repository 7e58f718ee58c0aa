"""A window of keys around each query is a convention: it is found, reported, and hides no mistake."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from heedful.checking import check


def make(before: int, after: int, end: bool = False, scale: float | None = None) -> Callable[..., Tensor]:
    """Attention to so many keys before and after; positions count from the start, or from the end."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        i, j = torch.arange(q.size(2)).unsqueeze(1), torch.arange(k.size(2))
        i = i + (k.size(2) - q.size(2) if end else 0)
        near = (j >= i - before) & (j <= i + after)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * (scale or q.size(3) ** -0.5)
        return torch.einsum("bhij,bhjd->bhid", torch.where(near, scores, -math.inf).softmax(3), v)

    return attention


@pytest.mark.parametrize(
    ("window", "words"),
    [
        ((2, 0), ["always causal, aligned to the start", "a query sees its own position, 2 before"]),
        ((1, 0, True), ["always causal, aligned to the end", "a query sees its own position, 1 before"]),
        ((2, 2), ["a query sees its own position, 2 before and 2 after"]),
        ((63, 0), ["always causal, aligned to the start", "a query sees its own position, 63 before"]),
        ((40, 40), ["a query sees its own position, 40 before and 40 after"]),
    ],
)
def test_a_window_is_reported(window: tuple[int, ...], words: list[str]) -> None:
    found = check(make(*window))
    assert (found.verdict, found.mistakes, found.properties) == ("right", (), ()), str(found)
    assert set(words) <= set(found.conventions)
    assert found.conventions == check(make(*window)).conventions


@pytest.mark.parametrize("window", [(2, 0), (2, 2), (63, 0)])
def test_a_mistake_beside_a_window(window: tuple[int, int]) -> None:
    found = check(make(*window, scale=1.0))
    assert [m.name for m in found.mistakes] == ["scale-missing"], str(found)
    assert any(c.startswith("a query sees its own position, ") for c in found.conventions)


def test_without_a_limit_there_is_no_window() -> None:
    assert not any("its own position" in c for c in check(make(1000, 0)).conventions)
    assert not any("its own position" in c for c in check(make(1000, 1000)).conventions)
