"""The learning-rate range test: let the rate grow with every update, and see where the loss falls fastest."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

SMOOTHING = 0.9
# The test ends once the smoothed loss is this much above its best, in nats.
FAILED = 1.0


@dataclass(frozen=True)
class RangeTest:
    """What a range test saw.

    Attributes:
        rates: The rate of each update.
        losses: The smoothed loss before each update.
        suggestion: A peak for a schedule with warm-up: the rate at which the smoothed loss fell fastest.
        limit: The rate at which it was lowest; from there on larger rates did harm.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    suggestion: float
    limit: float


def range_test(
    model: "nn.Module",
    optimizer: "Optimizer",
    loss: "Callable[[int], Tensor]",
    *,
    low: float = 1e-5,
    high: float = 1.0,
    steps: int = 200,
    clip: float | None = None,
) -> RangeTest:
    """Train with a rate that grows from `low` to `high` by the same factor each time, until the loss runs away.

    Args:
        model: Ends as it would after such a training; give a copy to keep the original.
        optimizer: Of the model's parameters, freshly made.
        loss: From the number of the update to the loss of its batch.
        low: First rate.
        high: Last rate.
        steps: Updates at most; at least 10.
        clip: Largest norm of the gradient, as in the training it prepares.

    Returns:
        Rates, losses and a suggestion.

    Raises:
        ValueError: The rates or the number of steps don't make a test, or the very first losses are not numbers.

    Cost:
        `steps` updates.

    Source: Smith, "Cyclical Learning Rates for Training Neural Networks", 2017, section 3.3.
    """
    from torch.nn.utils import clip_grad_norm_

    if not 0 < low < high:
        raise ValueError(
            f"range_test(): low must be above zero and below high, got low {low} and high {high}."
        )
    if steps < 10:
        raise ValueError(f"range_test(): steps must be at least 10, got {steps}.")
    rates: list[float] = []
    losses: list[float] = []
    average = 0.0
    for step in range(steps):
        rate = low * (high / low) ** (step / (steps - 1))
        for group in optimizer.param_groups:
            group["lr"] = rate
        value = loss(step)
        if not math.isfinite(value.item()):
            break
        average = SMOOTHING * average + (1 - SMOOTHING) * value.item()
        rates.append(rate)
        losses.append(average / (1 - SMOOTHING ** (step + 1)))
        if losses[-1] > min(losses) + FAILED:
            break
        optimizer.zero_grad()
        value.backward()
        if clip is not None:
            clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    if len(losses) < 10:
        reached = rates[-1] if rates else low
        raise ValueError(
            f"range_test(): the loss ran away after {len(losses)} updates, at a rate of {reached:.2g}. "
            "Begin with a lower rate."
        )
    return _judge(rates, losses)


def _judge(rates: list[float], losses: list[float]) -> RangeTest:
    lowest = losses.index(min(losses))
    # The slope over five steps, since single ones are noise; the steps are equal on a logarithmic scale.
    falls = [losses[i] - losses[i + 5] for i in range(max(1, lowest - 4))]
    steepest = falls.index(max(falls)) + 2
    return RangeTest(tuple(rates), tuple(losses), rates[steepest], rates[lowest])
