"""An error that nearby inputs share is wrong, however small it looks; one that is drawn anew each time is rounding."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from heedful.checking import assert_attention, check


def times(factor: float) -> Callable[..., Tensor]:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v) * factor

    return attention


def plus_in_denominator(amount: float) -> Callable[..., Tensor]:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / q.size(-1) ** 0.5
        e = (scores - scores.amax(-1, keepdim=True)).exp()
        return e @ v / (e.sum(-1, keepdim=True) + amount)

    return attention


def scaled_two_percent_too_much(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, scale=1.02 * q.size(-1) ** -0.5)


def half_and_a_factor(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q.half(), k.half(), v.half()).to(q.dtype) * 1.01


def slow(value: object) -> Any:
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.mark.parametrize("factor", [1.01, slow(0.995), slow(2.0)])
def test_a_factor_on_the_output_is_named(factor: float) -> None:
    with pytest.raises(AssertionError, match=f"every output is {factor:g} times the right one"):
        assert_attention(times(factor))


@pytest.mark.parametrize(
    "target",
    [
        plus_in_denominator(1e-2),
        *map(slow, (plus_in_denominator(1e-3), scaled_two_percent_too_much, half_and_a_factor)),
    ],
)
def test_a_systematic_error_is_wrong(target: Callable[..., Tensor]) -> None:
    found = check(target)
    assert (found.verdict, found.mistakes, found.hazards) == ("wrong", (), ()), str(found)
    assert any("not by rounding: nearby inputs give the same error" in words for words in found.properties)


def test_a_systematic_error_that_nobody_will_meet_is_mentioned() -> None:
    found = check(plus_in_denominator(3e-5))
    assert (found.verdict, found.hazards) == ("right", ()), str(found)
    assert any("more than float32's rounding, and no rounding" in words for words in found.untold)


def in_float16(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q.half(), k.half(), v.half(), is_causal=True).to(q.dtype)


def scores_in_bfloat16(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q.bfloat16() @ k.bfloat16().mT).float() / q.size(-1) ** 0.5).softmax(-1) @ v


def output_in_bfloat16(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v).bfloat16().to(q.dtype)


def values_in_eight_bits(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    step = v.abs().amax(-1, keepdim=True) / 127
    return functional.scaled_dot_product_attention(q, k, (v / step).round() * step)


class Autocast(nn.Module):
    """Parameters are rounded, too: the same way in every call."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
            out = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            return self.proj(out).float()


class TablesInHalf(nn.Module):
    """Cosines and sines were rounded once, and give all inputs the same error."""

    def __init__(self, dim: int, num_heads: int, kept: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        size = dim // num_heads
        angles = torch.arange(256)[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
        self.cos, self.sin = (t.to(kept).float().repeat(1, 2) for t in (angles.cos(), angles.sin()))

    def turned(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        length = x.size(2)
        return x * self.cos[:length] + torch.cat([-b, a], -1) * self.sin[:length]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        out = functional.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
        return self.proj(out.transpose(1, 2).flatten(2))


def alibi_in_half(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads, queries, keys = q.size(1), q.size(2), k.size(2)
    slopes = torch.tensor([2 ** (-8 * (h + 1) / heads) for h in range(heads)])[:, None, None]
    distance = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    scores = q @ k.mT / q.size(-1) ** 0.5 - (slopes * distance).half().to(q.dtype)
    return scores.masked_fill(distance < 0, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize(
    "target",
    [
        in_float16,
        scores_in_bfloat16,
        output_in_bfloat16,
        Autocast,
        TablesInHalf,
        TablesInHalf(32, 4, torch.float16),
        alibi_in_half,
    ],
)
def test_half_precision_is_a_hazard(target: Callable[..., Tensor]) -> None:
    found = check(target)
    assert (found.verdict, found.mistakes, found.properties) == ("right", (), ()), str(found)
    assert "softmax-low-precision" in [h.name for h in found.hazards]


def test_quantized_values_are_no_mistake_of_the_output() -> None:
    found = check(values_in_eight_bits)
    assert (found.properties, [h.name for h in found.hazards]) == ((), ["softmax-low-precision"]), str(found)
