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


def band(length: int, keys: int, before: int, after: int, offset: int) -> Tensor:
    ahead = torch.arange(keys) - torch.arange(length)[:, None] - offset
    return (ahead >= -before) & (ahead <= after)


@pytest.mark.parametrize(("before", "after"), [(2, 0), (3, 0), (1, 1)])
@pytest.mark.parametrize("blocked", [False, True])
def test_a_builder_of_window_masks(before: int, after: int, blocked: bool) -> None:
    def window_mask(length: int) -> Tensor:
        return band(length, length, before, after, 0) != blocked

    found = check(window_mask, kind="mask")
    around = f" and {after} after" if after else ""
    assert (found.verdict, found.mistakes, found.properties) == ("right", (), ()), str(found)
    assert f"a query sees its own position, {before} before{around}" in found.conventions
    assert f"mask True {'= blocked' if blocked else '= may attend'} (bool)" in found.conventions


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize("by", [-1, 1])
def test_a_moved_diagonal_is_told_from_the_other_end(by: int, end: bool, asked: bool) -> None:
    """With two keys more than queries, say, one ahead of the start is one behind the end."""

    def attention(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if is_causal or not asked:
            L, S = scores.shape[-2:]
            keep = torch.ones(L, S, dtype=torch.bool).tril(by + (S - L if end else 0))
            scores = scores.masked_fill(~keep, -math.inf)
        return scores.softmax(-1) @ value

    found = check(attention if asked else lambda query, key, value: attention(query, key, value))
    name = "causal-off-by-one" if by > 0 else "causal-strict"
    assert [m.name for m in found.mistakes] == [name], str(found)
    assert not found.properties
    assert any(f"aligned to the {'end' if end else 'start'}" in c for c in found.conventions)
