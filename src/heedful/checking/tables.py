"""The right sinusoidal table and the right rotation, as stages that a mistake can replace."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.checking.chain import Chain


@dataclass(frozen=True)
class TableReading:
    """Conventions of a table of sines and cosines.

    Attributes:
        layout: "pairs" (sine, cosine, sine, cosine, ...) or "halves" (all sines, then all cosines).
        cosine_first: Cosines stand where sines usually do.
        start: Position of the first row.
        spacing: "size": exponent 2i / d, as in the paper. "ends": i / (d/2 - 1), as in tensor2tensor and fairseq.
        base: The largest wavelength is 2 pi times this.
    """

    layout: str = "pairs"
    cosine_first: bool = False
    start: int = 0
    spacing: str = "size"
    base: float = 10000.0


def positions(length: int, start: int) -> Tensor:
    """One number per row."""
    return torch.arange(start, start + length, dtype=torch.float64)


def exponents(width: int, spacing: str) -> Tensor:
    """One exponent for each pair of columns."""
    half = (width + 1) // 2
    return torch.arange(half, dtype=torch.float64) / ((half - 1) if spacing == "ends" else width / 2)


def frequencies(exponents: Tensor, base: float) -> Tensor:
    """How far a pair turns from one position to the next."""
    return base**-exponents


def angles(positions: Tensor, frequencies: Tensor) -> Tensor:
    """Position times frequency: (L, pairs)."""
    return positions[:, None] * frequencies


def columns(angles: Tensor, width: int, reading: TableReading) -> Tensor:
    """Sines and cosines in their places: (L, width). With an odd width the last cosine is dropped."""
    waves = [angles.sin(), angles.cos()]
    if reading.cosine_first:
        waves.reverse()
    joined = torch.cat(waves, -1) if reading.layout == "halves" else torch.stack(waves, -1).flatten(-2)
    return joined[..., :width]


def add(x: Tensor, table: Tensor) -> Tensor:
    """(B, L, width) plus (L, width)."""
    return x + table


@dataclass(frozen=True)
class TableStages(Chain):
    """One function per stage of the table; the defaults are right."""

    positions: Callable[..., Any] = positions
    exponents: Callable[..., Any] = exponents
    frequencies: Callable[..., Any] = frequencies
    angles: Callable[..., Any] = angles
    columns: Callable[..., Any] = columns
    add: Callable[..., Any] = add


def table(length: int, width: int, reading: TableReading, stages: TableStages) -> Tensor:
    """The table (length, width)."""
    steps = stages.frequencies(stages.exponents(width, reading.spacing), reading.base)
    return stages.columns(stages.angles(stages.positions(length, reading.start), steps), width, reading)


@dataclass(frozen=True)
class TurnReading:
    """Conventions of a rotation.

    Attributes:
        layout: "half": column i turns with column i + D/2; "interleaved": 2i with 2i + 1.
        gathered: Neighbors turn together, and come back apart: the first of all pairs, then the second.
        sign: 1 turns forward, -1 backward.
        start: Position of the first token.
        base: As for tables.
    """

    layout: str = "half"
    gathered: bool = False
    sign: int = 1
    start: int = 0
    base: float = 10000.0


def places(x: Tensor, start: int) -> Tensor:
    """The position of each token of (B, H, L, D), ready to broadcast: (L, 1)."""
    return torch.arange(start, start + x.shape[-2], dtype=torch.float64)[:, None]


def turn(a: Tensor, b: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
    """Turn the points (a, b) by these angles."""
    cosine, sine = angles.cos(), angles.sin()
    return a * cosine - b * sine, b * cosine + a * sine


def apply(rotate: Callable[[Tensor], Tensor], query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Turn queries and keys, both."""
    return rotate(query), rotate(key)


@dataclass(frozen=True)
class TurnStages(Chain):
    """One function per stage of a rotation; the defaults are right."""

    places: Callable[..., Any] = places
    exponents: Callable[..., Any] = exponents
    frequencies: Callable[..., Any] = frequencies
    turn: Callable[..., Any] = turn
    apply: Callable[..., Any] = apply


def rotated(query: Tensor, key: Tensor, reading: TurnReading, stages: TurnStages) -> tuple[Tensor, Tensor]:
    """Queries and keys (B, H, L, D), turned by their positions."""

    def rotate(x: Tensor) -> Tensor:
        steps = stages.frequencies(stages.exponents(x.shape[-1], "size"), reading.base)
        turns = reading.sign * stages.places(x, reading.start) * steps
        if reading.layout == "half":
            return torch.cat(stages.turn(*x.chunk(2, -1), turns), -1)
        pairs = stages.turn(x[..., 0::2], x[..., 1::2], turns)
        return torch.cat(pairs, -1) if reading.gathered else torch.stack(pairs, -1).flatten(-2)

    return stages.apply(rotate, query, key)
