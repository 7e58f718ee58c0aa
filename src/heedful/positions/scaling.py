"""How rotary frequencies change so that a model reaches beyond the length it was trained on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heedful._checks import above_zero, share


def inverse_frequencies(
    dim: int, base: float | Tensor, dtype: torch.dtype, device: torch.device | None
) -> Float[Tensor, " pairs"]:
    """Radians per position of each pair: `1 / base ** (2i / dim)`."""
    exponents = torch.arange(0, dim, 2, device=device).to(dtype) / dim
    return 1.0 / base**exponents


@dataclass(frozen=True)
class Scaling:
    """A rule for rotary frequencies. A subclass gives `frequencies`, and the two class attributes where they differ.

    Attributes:
        magnitude: Factor on the sines and cosines (transformers calls it the attention factor).
        needs_length: Whether the frequencies depend on how long the sequence is. Keys of an earlier, shorter call then
            have to be turned anew, so a cache must hold them unturned.
    """

    needs_length: ClassVar[bool] = False

    @property
    def magnitude(self) -> float:
        """Factor on the sines and cosines."""
        return 1.0

    def frequencies(
        self, dim: int, base: float, lengths: Int[Tensor, "*batch 1"], dtype: torch.dtype
    ) -> Float[Tensor, "*batch pairs"]:
        """Radians per position of each pair.

        Args:
            dim: Number of turned entries, two for each pair.
            base: The rotary base.
            lengths: Length of each sequence.
            dtype: float32 or float64.

        Returns:
            (dim / 2,), or (*batch, dim / 2) where they depend on the length.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class LinearScaling(Scaling):
    """Positions divided by `factor`: a sequence `factor` times longer covers the angles seen in training.

    Source: Chen and others, Extending Context Window of Large Language Models via Positional Interpolation, 2023.
    """

    factor: float

    def __post_init__(self) -> None:
        _check_positive(self, "factor")

    def frequencies(self, dim: int, base: float, lengths: Tensor, dtype: torch.dtype) -> Tensor:
        return inverse_frequencies(dim, base, dtype, lengths.device) / self.factor


@dataclass(frozen=True)
class NTKScaling(Scaling):
    """A larger base: the slowest pair is slowed by `factor`, the fastest not at all.

    Source: Peng and others, YaRN: Efficient Context Window Extension of Large Language Models, 2023, section 3.1.
    """

    factor: float

    def __post_init__(self) -> None:
        _check_positive(self, "factor")

    def frequencies(self, dim: int, base: float, lengths: Tensor, dtype: torch.dtype) -> Tensor:
        base = base * self.factor ** _ntk_exponent(self, dim)
        return inverse_frequencies(dim, base, dtype, lengths.device)


@dataclass(frozen=True)
class DynamicNTKScaling(Scaling):
    """A base that grows with the sequence once it is longer than `original_length`.

    The length is each sequence's own (transformers takes the longest of the batch, so there an item's result depends on
    its neighbors).

    Source: Peng and others, YaRN: Efficient Context Window Extension of Large Language Models, 2023, section 3.3.
    """

    factor: float
    original_length: int
    needs_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_positive(self, "factor", "original_length")

    def frequencies(self, dim: int, base: float, lengths: Tensor, dtype: torch.dtype) -> Tensor:
        lengths = lengths.clamp(min=self.original_length).to(dtype)
        growth = self.factor * lengths / self.original_length - (self.factor - 1)
        return inverse_frequencies(dim, base * growth ** _ntk_exponent(self, dim), dtype, lengths.device)


@dataclass(frozen=True)
class YarnScaling(Scaling):
    """Slow pairs are divided by `factor`, fast ones stay, those between are mixed; scores grow slightly.

    Args:
        factor: New length over `original_length`.
        original_length: Length of the training sequences.
        magnitude_factor: Factor on the sines and cosines. None: from `factor`, and from both `mscale` where given.
        beta_fast: Pairs with more turns than this over `original_length` stay.
        beta_slow: Pairs with fewer turns are divided by `factor`.
        mscale: Weight of log(factor) in the magnitude.
        mscale_all_dim: Weight of log(factor) in what the magnitude is divided by.
        truncate: Whether the borders between the pairs are rounded to whole pairs.

    Source: Peng and others, YaRN: Efficient Context Window Extension of Large Language Models, 2023.
    """

    factor: float
    original_length: int
    magnitude_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        _check_positive(self, "factor", "original_length", "beta_fast", "beta_slow")

    @property
    def magnitude(self) -> float:
        """Factor on the sines and cosines."""
        if self.magnitude_factor is not None:
            return self.magnitude_factor
        if self.mscale and self.mscale_all_dim:
            return self._grown(self.mscale) / self._grown(self.mscale_all_dim)
        return self._grown(1.0)

    def _grown(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def frequencies(self, dim: int, base: float, lengths: Tensor, dtype: torch.dtype) -> Tensor:
        device = lengths.device
        low, high = self._borders(dim, base)
        pairs = torch.arange(dim // 2, dtype=dtype, device=device)
        slow = ((pairs - low) / (high - low)).clamp(0, 1)
        kept = inverse_frequencies(dim, base, dtype, device)
        return kept / self.factor * slow + kept * (1 - slow)

    def _borders(self, dim: int, base: float) -> tuple[float, float]:
        """Indices of the pairs that make `beta_fast` and `beta_slow` turns over the original length."""
        low, high = (
            dim * math.log(self.original_length / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        return low, high if high != low else high + 0.001


@dataclass(frozen=True)
class LongRopeScaling(Scaling):
    """One divisor per pair, found by a search: one set up to `original_length`, another for longer sequences.

    The length is each sequence's own (transformers takes the longest of the batch).

    Args:
        short_factors: One divisor per pair.
        long_factors: One divisor per pair.
        original_length: Length of the training sequences.
        factor: New length over `original_length`; only the magnitude depends on it.
        magnitude_factor: Factor on the sines and cosines. None: sqrt(1 + log(factor) / log(original_length)).

    Source: Ding and others, LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens, 2024.
    """

    short_factors: Sequence[float]
    long_factors: Sequence[float]
    original_length: int
    factor: float = 1.0
    magnitude_factor: float | None = None
    needs_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_positive(self, "original_length", "factor")
        object.__setattr__(self, "short_factors", tuple(self.short_factors))
        object.__setattr__(self, "long_factors", tuple(self.long_factors))

    @property
    def magnitude(self) -> float:
        """Factor on the sines and cosines."""
        if self.magnitude_factor is not None:
            return self.magnitude_factor
        return (
            math.sqrt(1 + math.log(self.factor) / math.log(self.original_length)) if self.factor > 1 else 1.0
        )

    def frequencies(self, dim: int, base: float, lengths: Tensor, dtype: torch.dtype) -> Tensor:
        for name, factors in (("short_factors", self.short_factors), ("long_factors", self.long_factors)):
            if len(factors) != dim // 2:
                raise ValueError(
                    f"LongRopeScaling: {name} must hold one number for each of the {dim // 2} turned pairs, "
                    f"got {len(factors)}."
                )
        short, long = (
            torch.tensor(factors, dtype=dtype, device=lengths.device)
            for factors in (self.short_factors, self.long_factors)
        )
        exponents = torch.arange(0, dim, 2, device=lengths.device).to(dtype) / dim
        return 1.0 / (torch.where(lengths > self.original_length, long, short) * base**exponents)


@dataclass(frozen=True)
class Llama3Scaling(Scaling):
    """Pairs with long waves are divided by `factor`, those with short waves stay, those between are mixed.

    Args:
        factor: Divisor of the slow pairs.
        low_freq_factor: Waves longer than original_length / low_freq_factor are divided.
        high_freq_factor: Waves shorter than original_length / high_freq_factor stay.
        original_length: Length of the training sequences.

    Source: Dubey and others, The Llama 3 Herd of Models, 2024; the rule itself is in the code released with Llama 3.1.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int

    def __post_init__(self) -> None:
        _check_positive(self, "factor", "low_freq_factor", "high_freq_factor", "original_length")
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                "Llama3Scaling: low_freq_factor must be below high_freq_factor, "
                f"got {self.low_freq_factor} and {self.high_freq_factor}."
            )

    def frequencies(self, dim: int, base: float, lengths: Tensor, dtype: torch.dtype) -> Tensor:
        kept = inverse_frequencies(dim, base, dtype, lengths.device)
        turns = self.original_length / (2 * math.pi / kept)
        fast = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return (1 - fast) * kept / self.factor + fast * kept


@dataclass(frozen=True)
class ProportionalScaling(Scaling):
    """Only the fastest `share` of the pairs turns, all divided by `factor`; pairs still lie across the whole head.

    Source: the rule called "proportional" in transformers' rotary functions.
    """

    share: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self, "factor")
        share("ProportionalScaling: share", self.share)

    def frequencies(self, dim: int, base: float, lengths: Tensor, dtype: torch.dtype) -> Tensor:
        kept = inverse_frequencies(dim, base, dtype, lengths.device)
        turned = torch.arange(dim // 2, device=lengths.device) < int(self.share * dim // 2)
        return torch.where(turned, kept / self.factor, 0.0)


def _ntk_exponent(scaling: Scaling, dim: int) -> float:
    if dim < 4:
        raise ValueError(
            f"{type(scaling).__name__} needs at least two pairs, a slow and a fast one; got {dim} turned entries."
        )
    return dim / (dim - 2)


def _check_positive(scaling: Scaling, *names: str) -> None:
    for name in names:
        above_zero(f"{type(scaling).__name__}: {name}", getattr(scaling, name))
