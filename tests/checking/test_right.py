"""No false alarm: attention that other people wrote, and conventions that are only conventions."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import wrong_attention
import wrong_cache
import wrong_module
import wrong_positions
import wrong_rotary
from torch import Tensor, nn
from torch.nn import functional

import heedful
from heedful.backends import native
from heedful.checking import Diagnosis, check


def right(target: Any, **options: Any) -> Diagnosis:
    """Check, and fail unless nothing is wrong."""
    found = check(target, **options)
    assert (found.verdict, found.mistakes, found.properties) == ("right", (), ()), str(found)
    return found


def hazards(found: Diagnosis) -> list[str]:
    return [h.name for h in found.hazards]


def test_torchs_function() -> None:
    found = right(functional.scaled_dot_product_attention)
    assert hazards(found) == ["masked-nan-leak"]
    assert "causal flag, aligned to the start" in found.conventions
    assert "mask True = may attend and a float mask is added to the scores (0 and -inf)" in found.conventions


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_torchs_module(batch_first: bool, need_weights: bool) -> None:
    module = nn.MultiheadAttention(24, 3, batch_first=batch_first)
    found = right(module, settings={"need_weights": need_weights})
    layout = "(batch, length, features)" if batch_first else "(length, batch, features)"
    assert f"layout {layout}" in found.conventions
    assert "mask True = blocked and a float mask is added to the scores (0 and -inf)" in found.conventions
    # With weights it takes the softmax that makes NaN of an empty row; without, the fused one that makes 0.
    assert ("empty-row-nan" in hazards(found)) == need_weights


def test_torchs_module_with_other_widths() -> None:
    right(nn.MultiheadAttention(24, 3, kdim=10, vdim=12, batch_first=True))


def scaled_by_the_caller(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention for a query that is already scaled."""
    return torch.einsum("bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).softmax(3), v)


def scaled_inside_the_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum(
        "bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q / q.size(3) ** 0.5, k).softmax(3), v
    )


def key_only_alibi(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads, queries, keys = q.size(1), q.size(2), k.size(2)
    slopes = torch.tensor([2 ** (-8 * (h + 1) / heads) for h in range(heads)]).reshape(-1, 1, 1)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.size(3)) + slopes * torch.arange(keys)
    ahead = torch.arange(keys) > torch.arange(queries).unsqueeze(1) + keys - queries
    return torch.einsum("bhij,bhjd->bhid", scores.masked_fill(ahead, -math.inf).softmax(3), v)


def blocks_where_true(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    keep = None if mask is None else ~mask
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)


def start_aligned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def apply_rotary_gathered(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Neighbors turn together and come back as halves, as in DeepSeek's models."""
    a, b = x[..., ::2], x[..., 1::2]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


@pytest.mark.parametrize(
    ("target", "convention"),
    [
        (scaled_by_the_caller, "the query comes scaled"),
        (scaled_inside_the_query, "layout (batch, heads, length, size)"),
        (key_only_alibi, "adds ALiBi by distance"),
        (blocks_where_true, "mask True = blocked"),
        (start_aligned, "always causal, aligned to the start"),
        (wrong_attention.make(), "mask True = may attend"),
        (wrong_attention.make_causal(), "always causal, aligned to the end"),
        (wrong_module.make(), "weights per head"),
        (wrong_positions.make(), "columns in pairs (sine, cosine, ...)"),
        (wrong_positions.module(), "layout (batch, length, features)"),
        (wrong_rotary.make(), "columns pair up as neighbors (2i and 2i + 1)"),
        (
            apply_rotary_gathered,
            "columns come back as halves (scores are the same when query and key both do)",
        ),
        (wrong_cache.make(), "turns queries and keys: interleaved rotary, base 10000"),
        (wrong_cache.make(base=wrong_cache.Static), "always causal"),
        (wrong_cache.make(base=wrong_cache.Resettable), "the cache is emptied by reset_cache()"),
    ],
)
def test_a_convention_is_reported_and_not_accused(target: Callable[..., Any], convention: str) -> None:
    assert convention in right(target).conventions


@pytest.mark.parametrize(
    "target",
    [
        heedful.MultiHeadAttention,
        heedful.MultiHeadAttention(32, 4, num_kv_heads=2),
        heedful.scaled_dot_product_attention,
        heedful.positional_encoding,
        heedful.Sinusoidal(),
        heedful.Rotary().rotate,
        heedful.Rotary(layout="interleaved").rotate,
    ],
    ids="module grouped function encoding sinusoidal rotary interleaved".split(),
)
def test_heedfuls_own(target: Callable[..., Any]) -> None:
    assert hazards(right(target)) == []


def test_with_one_head_it_says_what_it_cannot_tell() -> None:
    found = check(nn.MultiheadAttention(24, 1, batch_first=True))
    assert found.verdict == "right"
    told = next(words for words in found.untold if words.startswith("with one head"))
    assert {"heads-merge-reshape", "heads-split-reshape", "scale-model-dim"} <= set(
        told.removeprefix("with one head: ").split(", ")
    )


@pytest.mark.parametrize("backend", ["reference", "panels", "native", "auto"])
def test_heedfuls_own_backends(backend: str) -> None:
    if backend == "native" and native.info().reason is not None:
        pytest.skip(f"native: {native.info().reason}")

    def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        return heedful.scaled_dot_product_attention(query, key, value, mask, backend=backend)

    found = right(attention)
    assert hazards(found) == []
    assert "weights per head" in found.conventions
