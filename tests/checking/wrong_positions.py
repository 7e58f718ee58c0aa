"""Positional encodings with the classic mistakes, written element by element."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


def make(*wrong: str) -> Callable[[int, int], Tensor]:
    """positional_encoding(seq_len, embed_dim) with these mistakes."""

    def positional_encoding(seq_len: int, embed_dim: int) -> Tensor:
        if "positions-odd-size" in wrong and embed_dim % 2:
            raise RuntimeError("The expanded size of the tensor (3) must match the existing size (4)")
        table = torch.zeros(seq_len, embed_dim)
        for position in range(seq_len):
            for column in range(embed_dim):
                table[position, column] = entry(set(wrong), position, column, embed_dim)
        return table

    return positional_encoding


def entry(wrong: set[str], position: int, column: int, width: int) -> float:
    pair = column // 2
    base = 1000.0 if "positions-base" in wrong else 10000.0
    power = 2 * pair / width
    if "positions-exponent" in wrong:
        power = pair / width
    if "positions-column-exponent" in wrong:
        power = 2 * column / width
    angle = position / base**power
    if "positions-half-precision" in wrong:
        rounded = torch.tensor(float(position)).bfloat16() * torch.tensor(base**-power).bfloat16()
        angle = rounded.item()
    if column % 2 == 0 or "positions-cosine-missing" in wrong:
        return math.sin(angle)
    return math.cos(angle)


def from_one(seq_len: int, embed_dim: int) -> Tensor:
    """Sines and cosines. Positions start at 1."""
    return make()(seq_len, embed_dim)


class Encoding(nn.Module):
    """Adds a table to (batch, seq_len, features)."""

    wrong: frozenset[str] = frozenset()

    def __init__(self, d_model: int, max_len: int = 5000) -> None:
        super().__init__()
        place = torch.arange(max_len).unsqueeze(1)
        rate = 10000.0 ** (-torch.arange((d_model + 1) // 2) * 2 / d_model)
        table = torch.zeros(max_len, d_model)
        table[:, 0::2] = (place * rate).sin()
        table[:, 1::2] = (place * rate).cos()[:, : d_model // 2]
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        if "positions-not-added" in self.wrong:
            x + self.table[: x.size(1)]
            return x
        if "positions-wrong-axis" in self.wrong:
            return x + self.table[: x.size(0)].unsqueeze(1)
        x = x + self.table[: x.size(1)]
        return x + self.table[: x.size(1)] if "positions-added-twice" in self.wrong else x


def module(*wrong: str) -> type[Encoding]:
    """A class with these mistakes."""
    return type("PositionalEncoding", (Encoding,), {"wrong": frozenset(wrong), "__doc__": Encoding.__doc__})


def reversed_alibi(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads, queries, keys = q.size(1), q.size(2), k.size(2)
    slopes = torch.tensor([2 ** (-8 * (h + 1) / heads) for h in range(heads)]).reshape(-1, 1, 1)
    distance = (torch.arange(queries).unsqueeze(1) - torch.arange(keys)).abs()
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.size(3) ** 0.5 + slopes * distance
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(3), v)
