"""Blocks with a key/value cache, in the two styles people use, each with the classic mistakes.

`make("cache-stale")` hands the cache over and back; `make("cache-unwritten", base=Static)` keeps it inside.
"""

import math

import torch
from torch import Tensor, nn
from wrong_attention import normalized, scale


def turned(x: Tensor, positions: Tensor) -> Tensor:
    """Neighboring columns turn together."""
    half = torch.arange(x.size(-1) // 2)
    angles = positions.reshape(-1, 1) / 10000 ** (2 * half / x.size(-1))
    as_complex = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(as_complex * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


class Base(nn.Module):
    """Causal self-attention with rotary positions."""

    wrong: frozenset[str] = frozenset()

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def heads(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), x.size(1), self.n_heads, -1).permute(0, 2, 1, 3)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, before: int) -> Tensor:
        new, total = q.size(2), k.size(2)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * scale(set(self.wrong), q, k, v)
        row, column = torch.arange(new).unsqueeze(1), torch.arange(total).unsqueeze(0)
        ahead = column > row + (total - new)
        if "cache-causal-start" in self.wrong:
            ahead = column > row
        if "cache-chunk-sees-ahead" in self.wrong and before:
            ahead = torch.zeros_like(ahead)
        weights = normalized(set(self.wrong), scores.masked_fill(ahead, -math.inf))
        if "scale-after-softmax" in self.wrong:
            weights = weights / q.size(-1) ** 0.5
        mixed = torch.einsum("bhij,bhjd->bhid", weights, v)
        return self.wo(mixed.permute(0, 2, 1, 3).flatten(2))

    def place(self, before: int, new: int) -> Tensor:
        start = before
        if "cache-offset" in self.wrong and before:
            start = before - 1
        return torch.arange(start, start + new)


class Handed(Base):
    """The cache comes in and goes out."""

    def forward(
        self, x: Tensor, cache: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        before = 0 if cache is None else cache[0].size(2)
        q, k, v = self.heads(self.wq(x)), self.heads(self.wk(x)), self.heads(self.wv(x))
        places = self.place(before, x.size(1))
        q, k = turned(q, places), turned(k, places)
        old = (k[:, :, :0], v[:, :, :0]) if cache is None else cache
        all_k, all_v = torch.cat([old[0], k], 2), torch.cat([old[1], v], 2)
        seen = (all_k, all_v)
        if "cache-stale" in self.wrong and before:
            seen = old
        if "cache-forgotten" in self.wrong:
            seen = (k, v)
        if "cache-last-step-only" in self.wrong:
            keep = x.size(1) + 1
            seen = (all_k[:, :, -keep:], all_v[:, :, -keep:])
        return self.attend(q, *seen, before), (all_k, all_v)


class Static(Base):
    """The cache is a buffer of 32 slots inside the module."""

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__(dim, n_heads)
        self.register_buffer("cache_k", torch.zeros(4, n_heads, 32, dim // n_heads), persistent=False)
        self.register_buffer("cache_v", torch.zeros(4, n_heads, 32, dim // n_heads), persistent=False)

    def forward(self, x: Tensor, start_pos: int) -> Tensor:
        batch, new = x.size(0), x.size(1)
        end = start_pos + new
        q, k, v = self.heads(self.wq(x)), self.heads(self.wk(x)), self.heads(self.wv(x))
        places = self.place(start_pos, new)
        with torch.no_grad():
            self.cache_k[:batch, :, start_pos:end] = turned(k, places).detach()
            self.cache_v[:batch, :, start_pos:end] = v.detach()
        if "cache-unwritten" in self.wrong:
            seen = self.cache_k[:batch], self.cache_v[:batch]
            return self.everything(turned(q, places), *seen, end)
        return self.attend(
            turned(q, places), self.cache_k[:batch, :, :end], self.cache_v[:batch, :, :end], start_pos
        )

    def everything(self, q: Tensor, k: Tensor, v: Tensor, end: int) -> Tensor:
        row, column = torch.arange(q.size(2)).unsqueeze(1), torch.arange(k.size(2)).unsqueeze(0)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.size(-1))
        future = (column > row + end - q.size(2)) & (column < end)
        mixed = torch.einsum("bhij,bhjd->bhid", scores.masked_fill(future, -math.inf).softmax(-1), v)
        return self.wo(mixed.permute(0, 2, 1, 3).flatten(2))


class Growing(Base):
    """The cache grows inside the module, and only `reset_cache` empties it."""

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__(dim, n_heads)
        self.kept: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor, use_cache: bool = False) -> Tensor:
        before = 0 if self.kept is None or not use_cache else self.kept[0].size(2)
        q, k, v = self.heads(self.wq(x)), self.heads(self.wk(x)), self.heads(self.wv(x))
        places = self.place(before, x.size(1))
        q, k = turned(q, places), turned(k, places)
        if use_cache:
            if self.kept is not None:
                k, v = torch.cat([self.kept[0], k], 2), torch.cat([self.kept[1], v], 2)
            self.kept = (k.detach(), v.detach())
        return self.attend(q, k, v, before)


class Resettable(Growing):
    def reset_cache(self) -> None:
        self.kept = None


def make(*wrong: str, base: type[Base] = Handed) -> type[Base]:
    """A class with these mistakes."""
    return type("Block", (base,), {"wrong": frozenset(wrong)})
