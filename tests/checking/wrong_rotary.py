"""Rotary embeddings with the classic mistakes, written with complex numbers."""

from collections.abc import Callable

import torch
from torch import Tensor


def make(*wrong: str) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """apply_rope(q, k) for (batch, heads, length, size), neighbors in pairs, with these mistakes."""

    def apply_rope(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Turn query and key of shape (batch, heads, length, size). q: (batch, heads, length, size)."""
        shift = 1 if "rotary-offset" in wrong else 0
        return turned(set(wrong), q, 0), k if "rotary-one-side" in wrong else turned(set(wrong), k, shift)

    return apply_rope


def turned(wrong: set[str], x: Tensor, shift: int) -> Tensor:
    size = x.size(-1)
    pairs = torch.arange(size // 2, dtype=torch.float32)
    base = 1000.0 if "rotary-base" in wrong else 10000.0
    rate = base ** (-pairs / size if "rotary-exponent" in wrong else -2 * pairs / size)
    axis = 1 if "rotary-wrong-axis" in wrong else 2
    place = torch.arange(x.size(axis), dtype=torch.float32) + shift
    place = place.reshape(-1, 1, 1) if axis == 1 else place.reshape(-1, 1)
    if "rotary-half-precision" in wrong:
        place, rate = place.bfloat16(), rate.bfloat16()
    angle = (place * rate).float() * (2 if "rotary-twice" in wrong else 1)
    if "rotary-no-minus" in wrong:
        a, b = x[..., 0::2], x[..., 1::2]
        mixed = (a * angle.cos() + b * angle.sin(), b * angle.cos() + a * angle.sin())
        return torch.stack(mixed, -1).flatten(-2)
    points = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(points * torch.polar(torch.ones_like(angle), angle)).flatten(-2).to(x.dtype)


def apply_rope_half(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embedding as in GPT-NeoX: the two halves of a head turn together."""
    return make()(q, k)
