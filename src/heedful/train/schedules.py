"""Learning-rate schedules: pure functions of the step.

A schedule answers one question: by what factor is the base rate multiplied for this update? `step` counts the updates
that came before, from 0, as `torch.optim.lr_scheduler.LambdaLR` counts. The rate would be zero just before the run
(step -1) and just after it (step `total`), so no update in between is spent on a zero rate: the first of `warmup` steps
has 1/warmup, the last has 1, and after the end the rate stays where it arrived.

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = lambda_lr(optimizer, schedule("cosine", total=1000, warmup=100))
"""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `heedful train --help` reads the schedules' names, and needs no torch for that
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR

Schedule = Callable[[int], float]


def constant(step: int) -> float:
    """The base rate, always."""
    _check("constant", step)
    return 1.0


def linear_warmup(step: int, *, warmup: int) -> float:
    """min(t / warmup, 1) with t = step + 1: rise in equal steps, then stay."""
    _check("linear_warmup", step, warmup=warmup)
    return 1.0 if step >= warmup else (step + 1) / warmup


def noam(step: int, *, embed_dim: int, warmup: int) -> float:
    """embed_dim^-0.5 · min(t^-0.5, t · warmup^-1.5) with t = step + 1.

    This is the rate itself, for a base rate of 1. It peaks at t = warmup with (embed_dim · warmup)^-0.5.

    Source: Vaswani et al., "Attention Is All You Need", 2017, section 5.3.
    """
    _check("noam", step, warmup=warmup)
    if embed_dim < 1:
        raise ValueError(f"noam(): embed_dim must be at least 1, got {embed_dim}.")
    t = step + 1
    rise = t * warmup**-1.5 if warmup else math.inf
    return embed_dim**-0.5 * min(t**-0.5, rise)


def inverse_sqrt(step: int, *, warmup: int) -> float:
    """min(t / warmup, (warmup / t)^0.5) with t = step + 1: the shape of `noam` with a peak of 1."""
    _check("inverse_sqrt", step, warmup=warmup)
    t = step + 1
    return t**-0.5 if warmup == 0 else min(t / warmup, (warmup / t) ** 0.5)


def cosine(step: int, *, total: int, warmup: int = 0, floor: float = 0.0) -> float:
    """Rise for `warmup` steps, then half a cosine from 1 to `floor`, reached at step `total`.

    Source: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017, without restarts.
    """
    _check("cosine", step, warmup=warmup, total=total, floor=floor)
    if step < warmup:
        return (step + 1) / warmup
    return _half_cosine(1.0, floor, _progress(step, warmup, total))


def linear(step: int, *, total: int, warmup: int = 0, floor: float = 0.0) -> float:
    """Rise for `warmup` steps, then fall in equal steps from 1 to `floor`, reached at step `total`."""
    _check("linear", step, warmup=warmup, total=total, floor=floor)
    if step < warmup:
        return (step + 1) / warmup
    return 1.0 + (floor - 1.0) * _progress(step, warmup, total)


def wsd(step: int, *, total: int, decay: int, warmup: int = 0, floor: float = 0.0) -> float:
    """Warm-up, stable, decay: rise, stay at 1, and fall in equal steps to `floor` over the last `decay` steps.

    The stable part has no plan for its end: a run can be prolonged from any checkpoint of it.

    Source: Hu et al., "MiniCPM", 2024; Hägele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed Training
    Durations", 2024.
    """
    _check("wsd", step, warmup=warmup, total=total, floor=floor)
    if not 1 <= decay <= total - warmup:
        raise ValueError(
            f"wsd(): decay must be between 1 and total - warmup = {total - warmup}, got {decay}.\n"
            f"The last `decay` of the {total} steps come after {warmup} steps of warm-up."
        )
    if step < warmup:
        return (step + 1) / warmup
    return 1.0 + (floor - 1.0) * _progress(step, total - decay, total)


def one_cycle(
    step: int, *, total: int, rise: float = 0.3, start: float = 1 / 25, floor: float = 1 / 250_000
) -> float:
    """Half a cosine from `start` up to 1, then half a cosine down to `floor`, reached by the last step.

    The peak is at step `rise · total - 1`. The numbers are those of `torch.optim.lr_scheduler.OneCycleLR`.

    Source: Smith and Topin, "Super-Convergence", 2018.
    """
    _check("one_cycle", step, total=total, floor=floor)
    if not 0 < rise < 1:
        raise ValueError(f"one_cycle(): rise must be a fraction of the run between 0 and 1, got {rise}.")
    peak = rise * total - 1
    if step <= peak:
        return _half_cosine(start, 1.0, step / peak if peak else 1.0)
    return _half_cosine(1.0, floor, _progress(step, peak, total - 1))


def cosine_restarts(
    step: int, *, period: int, total: int, warmup: int = 0, growth: int = 1, floor: float = 0.0
) -> float:
    """Rise for `warmup` steps, then fall along half a cosine and start again, until step `total`.

    The first fall takes `period` steps, each later one `growth` times as many as the one before.

    Source: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017.
    """
    _check("cosine_restarts", step, warmup=warmup, total=total, floor=floor)
    for name, value in (("period", period), ("growth", growth)):
        if value < 1:
            raise ValueError(f"cosine_restarts(): {name} must be at least 1, got {value}.")
    if step < warmup:
        return (step + 1) / warmup
    if step >= total:
        return floor
    since = step - warmup
    while since >= period:
        since -= period
        period *= growth
    return _half_cosine(1.0, floor, since / period)


SCHEDULES: dict[str, Callable[..., float]] = {
    "constant": constant,
    "warmup": linear_warmup,
    "noam": noam,
    "inverse-sqrt": inverse_sqrt,
    "cosine": cosine,
    "linear": linear,
    "wsd": wsd,
    "one-cycle": one_cycle,
    "restarts": cosine_restarts,
}


def settings_of(name: str) -> tuple[str, ...]:
    """Names of the settings that a schedule takes."""
    if name not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {name!r}.")
    return tuple(inspect.signature(SCHEDULES[name]).parameters)[1:]


def schedule(name: str, **settings: float) -> Schedule:
    """A schedule by name, with its settings filled in: a function of the step alone.

    Args:
        name: One of `SCHEDULES`.
        settings: What the function of that name takes after `step`, such as `total=1000, warmup=100`.

    Returns:
        A function from the step, counted from 0, to a factor on the base rate.

    Raises:
        ValueError: The name is unknown, or a setting is missing, unknown or out of range.

    Cost:
        A few floating-point operations per call; nothing is stored.

    Example:
        >>> [schedule("warmup", warmup=4)(step) for step in range(6)]
        [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """
    known = settings_of(name)
    parameters = inspect.signature(SCHEDULES[name]).parameters
    unknown = [setting for setting in settings if setting not in known]
    missing = [
        key for key in known if parameters[key].default is inspect.Parameter.empty and key not in settings
    ]
    for problem, keys in (("takes no", unknown), ("needs", missing)):
        if keys:
            takes = ", ".join(known) or "nothing"
            raise ValueError(f"schedule({name!r}) {problem} {', '.join(keys)}. It takes: {takes}.")
    chosen = partial(SCHEDULES[name], **settings)
    chosen(0)
    return chosen


def lambda_lr(optimizer: "Optimizer", schedule: Schedule, *, start: int = 0) -> "LambdaLR":
    """The schedule as a PyTorch scheduler: call `step()` once after each `optimizer.step()`.

    Args:
        optimizer: Its `lr` is the base rate that the schedule multiplies.
        schedule: Factor for each step, as `schedule()` returns.
        start: Updates already done. A schedule has no memory, so this number is all it takes to continue; a scheduler
            restored with `load_state_dict` continues as well.

    Returns:
        A `LambdaLR` whose rate is already set for update `start`.
    """
    from torch.optim.lr_scheduler import LambdaLR

    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
    return LambdaLR(optimizer, schedule, last_epoch=start - 1)


def _progress(step: float, begin: float, end: float) -> float:
    """How far `step` is on the way from `begin` to `end`, between 0 and 1."""
    return min(max((step - begin) / (end - begin), 0.0), 1.0)


def _half_cosine(first: float, last: float, progress: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * progress)) / 2


def _check(function: str, step: int, warmup: int = 0, total: int | None = None, floor: float = 0.0) -> None:
    if step < 0:
        raise ValueError(f"{function}(): step must not be negative, got {step}. The first update is step 0.")
    if warmup < 0:
        raise ValueError(f"{function}(): warmup must not be negative, got {warmup}. 0 means no warm-up.")
    if total is not None and total <= warmup:
        raise ValueError(
            f"{function}(): total must be more than warmup, got total {total} and warmup {warmup}."
        )
    if not 0 <= floor <= 1:
        raise ValueError(f"{function}(): floor is a fraction of the base rate between 0 and 1, got {floor}.")
