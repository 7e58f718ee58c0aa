"""The search for everything that isn't attention itself: tables, rotations, masks, caches."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from heedful.checking.catalogue.entry import Mistake
from heedful.checking.chain import Chain
from heedful.checking.search import Made, largest, subsets

Predict = Callable[[Any, Any], Sequence[Tensor]]
C = TypeVar("C", bound=Chain)
CLOSE = 2e-4


class Fit(NamedTuple):
    """What reproduces what was seen: a reading, mistakes, and the largest error, relative to the largest value."""

    reading: Any
    made: tuple[Made, ...]
    error: float

    def stages(self, right: C) -> C:
        """The stages that reproduce it."""
        chain = right.with_all(m.variant for m in self.made)
        assert chain is not None
        return chain


def simplest(
    seen: Sequence[Tensor],
    readings: Iterable[Any],
    mistakes: Sequence[Mistake],
    right: Chain,
    predict: Predict,
    tolerance: float = CLOSE,
) -> Fit | None:
    """The reading with the fewest mistakes that reproduces all that was seen; of equals, the first.

    Args:
        seen: What the target returned, a tensor for each input.
        readings: Conventions, most likely first.
        mistakes: Entries that may be combined, at most two.
        right: The right stages.
        predict: From a reading and stages to what should have been seen.
        tolerance: Error to accept, relative to the largest value.
    """
    readings = list(readings)
    for count in range(3):
        for reading in readings:
            for made in subsets(mistakes, count):
                error = error_of(seen, reading, made, right, predict)
                if error <= tolerance:
                    return Fit(reading, made, error)
    return None


def error_of(
    seen: Sequence[Tensor], reading: Any, made: Iterable[Made], right: Chain, predict: Predict
) -> float:
    """Largest relative error of one hypothesis; infinite where it makes no sense."""
    stages = right.with_all(m.variant for m in made)
    if stages is None:
        return torch.inf
    try:
        wanted = predict(reading, stages)
    except (RuntimeError, IndexError):
        return torch.inf
    return max(gap(a, b) for a, b in zip(seen, wanted, strict=True))


def gap(seen: Tensor, wanted: Tensor) -> float:
    """Largest difference relative to the largest value; what is not finite in both counts as equal."""
    if seen.shape != wanted.shape:
        return torch.inf
    away = (seen - wanted).abs()
    both = ~seen.isfinite() & ~wanted.isfinite()
    away = away.masked_fill(both, 0.0).nan_to_num(torch.inf)
    return away.max().item() / largest(wanted) if away.numel() else 0.0
