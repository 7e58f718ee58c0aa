"""Attention as well-known courses and repositories write it: it is called as they want it, and judged fairly."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from heedful.checking import check


def annotated(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: nn.Module | None = None
) -> tuple[Tensor, Tensor]:
    """The dropout is a module, or nothing."""
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    weights = scores.softmax(dim=-1)
    if dropout is not None:
        weights = dropout(weights)
    return torch.matmul(weights, value), weights


class PreNorm(nn.Module):
    """Normalizes its input itself."""

    def __init__(self, dim: int, heads: int = 8, dim_head: int = 16, norm: type = nn.LayerNorm) -> None:
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.norm = norm(dim)
        self.to_qkv = nn.Linear(dim, dim_head * heads * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim_head * heads, dim), nn.Dropout(0.0))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        )
        weights = (q @ k.transpose(-1, -2) * self.scale).softmax(-1)
        return self.to_out((weights @ v).transpose(1, 2).flatten(2))


class WithFrequencies(nn.Module):
    """Rotates only when it is given frequencies; heads are grouped."""

    def __init__(self, dim: int, n_heads: int, n_kv_heads: int) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)

    def forward(self, x: Tensor, freqs_cis: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        sides = (f(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        q, k, v = (t.repeat_interleave(self.n_heads // t.size(1), 1) for t in sides)
        scores = q @ k.transpose(2, 3) / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores + mask
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Lengths(nn.Module):
    """Takes the number of real keys of each sample."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None
    ) -> Tensor:
        scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(queries.shape[-1])
        if valid_lens is not None:
            real = torch.arange(keys.shape[1])[None, None, :] < valid_lens[:, None, None]
            scores = scores.masked_fill(~real, -1e6)
        return torch.bmm(self.dropout(scores.softmax(-1)), values)


class LengthsIgnored(Lengths):
    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None
    ) -> Tensor:
        return super().forward(queries, keys, values)


def capped(q: Tensor, k: Tensor, v: Tensor, softcap: float = 30.0) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.size(-1))
    return (softcap * torch.tanh(scores / softcap)).softmax(-1) @ v


def normed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = (functional.rms_norm(x, x.shape[-1:]) for x in (q, k))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def plus_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = (q @ k.mT / math.sqrt(q.size(-1))).exp()
    return e @ v / (1 + e.sum(-1, keepdim=True))


@pytest.mark.parametrize(
    ("target", "conventions"),
    [
        (annotated, ["mask True = may attend", "weights per head"]),
        (PreNorm, ["normalizes its input first", "fused projection in the order q, k, v (role, head, size)"]),
        (PreNorm(32, norm=nn.RMSNorm), ["normalizes its input first"]),
        (Lengths, ["lengths count the keys that may be attended"]),
        (capped, ["caps scores at 30 by tanh"]),
        (
            normed,
            ["divides queries and keys by their root mean square", "always causal, aligned to the start"],
        ),
        (plus_one, ["adds 1 to the sum of exponentials (a sink whose score is 0)"]),
        (WithFrequencies, ["mask is added to the scores (0 and -inf)"]),
    ],
)
def test_a_style_is_understood(target: Callable[..., Any], conventions: list[str]) -> None:
    found = check(target)
    assert (found.verdict, found.mistakes, found.properties) == ("right", (), ()), str(found)
    assert set(conventions) <= set(found.conventions)


class Head(nn.Module):
    """One causal head, scaled by the width of its input."""

    def __init__(self, head_size: int = 16, n_embd: int = 32, block_size: int = 256) -> None:
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x: Tensor) -> Tensor:
        length, width = x.shape[1:]
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * width**-0.5
        scores = scores.masked_fill(self.tril[:length, :length] == 0, -math.inf)
        return functional.softmax(scores, dim=-1) @ self.value(x)


def test_the_width_of_the_input_is_not_the_size_of_a_head() -> None:
    found = check(Head())
    assert [m.description for m in found.mistakes] == [
        "scores are divided by sqrt(features) = 5.66; expected 4.00 = sqrt(head_dim)"
    ]
    assert not any("scale-wrong-axis" in words for words in found.untold)


def test_lengths_that_change_nothing() -> None:
    assert [m.name for m in check(LengthsIgnored).mistakes] == ["padding-ignored"]


def to_cap(cap: float) -> Callable[..., Tensor]:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return capped(q, k, v, cap)

    return attention


def capped_if_asked(q: Tensor, k: Tensor, v: Tensor, logits_soft_cap: float | None = None) -> Tensor:
    return capped(q, k, v, logits_soft_cap or 1e6)


def capped_and_not_scaled(q: Tensor, k: Tensor, v: Tensor, softcap: float = 7.0) -> Tensor:
    return capped(q * math.sqrt(q.size(-1)), k, v, softcap)


class Capped(PreNorm):
    """The cap is an attribute, or stands in a configuration."""

    def __init__(self, dim: int, cap: float = 5.0) -> None:
        super().__init__(dim)
        self.attn_logit_softcapping = cap

    def forward(self, x: Tensor) -> Tensor:
        parts = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in parts)
        return self.to_out(capped(q, k, v, self.attn_logit_softcapping).transpose(1, 2).flatten(2))


class Configured(Capped):
    def __init__(self, dim: int) -> None:
        super().__init__(dim, 8.0)
        self.config = {"attn_logit_softcapping": self.__dict__.pop("attn_logit_softcapping")}

    def __getattr__(self, name: str) -> Any:
        return self.config[name] if name == "attn_logit_softcapping" else super().__getattr__(name)


@pytest.mark.parametrize(
    ("target", "settings", "cap"),
    [
        (capped, {"softcap": 5.0}, "5"),
        (capped_if_asked, {"logits_soft_cap": 8.0}, "8"),
        (to_cap(5.0), {}, "5"),
        (to_cap(12.5), {}, "12.5"),
        (to_cap(100.0), {}, "100"),
        (Capped, {}, "5"),
        (Configured, {}, "8"),
    ],
)
def test_any_cap_is_found(target: Callable[..., Any], settings: dict[str, float], cap: str) -> None:
    found = check(target, settings=settings)
    assert (found.verdict, found.mistakes, found.properties) == ("right", (), ()), str(found)
    assert f"caps scores at {cap} by tanh" in found.conventions


def test_a_mistake_beside_a_cap() -> None:
    found = check(capped_and_not_scaled)
    assert ([m.name for m in found.mistakes], found.properties) == (["scale-missing"], ()), str(found)


def insists(means: str) -> Callable[..., Tensor]:
    """A function that cannot be called without a mask, of any meaning."""

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        match means:
            case "keep":
                scores = scores.masked_fill(mask == 0, -1e9)
            case "block":
                scores = scores.masked_fill(mask, -1e9)
            case "add":
                scores = scores + mask
            case "keep keys":
                scores = scores.masked_fill(~mask[:, None, None, :], -1e9)
            case "multiply":
                return (scores.softmax(-1) * mask) @ value
        return scores.softmax(-1) @ value

    return attend


@pytest.mark.parametrize(
    ("means", "convention"),
    [
        ("keep", "mask True = may attend"),
        ("block", "mask True = blocked"),
        ("add", "mask is added to the scores (0 and -inf)"),
        ("keep keys", "mask True = may attend"),
    ],
)
def test_a_mask_that_must_be_given(means: str, convention: str) -> None:
    found = check(insists(means))
    assert (found.verdict, found.mistakes, found.properties) == ("right", (), ()), str(found)
    assert convention in found.conventions


class Insists(nn.Module):
    """The module of many a tutorial: the mask has no default, and whoever has none passes None or ones."""

    def __init__(self, d_model: int, num_heads: int, scaled: bool = True) -> None:
        super().__init__()
        self.num_heads, self.scaled = num_heads, scaled
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        sides = ((self.w_q, q), (self.w_k, k), (self.w_v, v))
        q, k, v = (f(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for f, x in sides)
        scores = (q @ k.mT / (math.sqrt(q.shape[-1]) if self.scaled else 1)).masked_fill(mask == 0, -1e9)
        return self.w_o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_a_module_whose_mask_must_be_given() -> None:
    found = check(Insists(24, 3))
    assert (found.verdict, found.mistakes, found.properties) == ("right", (), ()), str(found)
    assert "mask True = may attend" in found.conventions
    assert [m.name for m in check(Insists(24, 3, scaled=False)).mistakes] == ["scale-missing"]


def test_a_mistake_with_a_mask_that_must_be_given() -> None:
    found = check(insists("multiply"))
    assert ([m.name for m in found.mistakes], found.properties) == (["mask-after-softmax"], ()), str(found)


def test_what_a_query_that_sees_nothing_gets_is_not_held_against_its_gradient() -> None:
    def strictly_causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-1)
        return scores.masked_fill(~keep, -1e9).softmax(-1) @ value

    found = check(strictly_causal)
    assert ([m.name for m in found.mistakes], found.properties) == (["causal-strict"], ()), str(found)
