"""The largest score of a target that bends its scores by tanh: told by a parameter or attribute, or measured."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from heedful.checking.calling import CallFailed
from heedful.checking.cases import Shape
from heedful.checking.function_calls import Function
from heedful.checking.options import Options
from heedful.checking.roles import parameters, plain_name

NAME = re.compile(r"soft_?cap|logits?_?(?:soft_?)?cap|score_?cap|tanh_?(?:cap|clip)|^cap$")
PRECISE = 85.0  # exp of minus this is still a normal float32
FAR = 1e4  # a score that tanh bends down to any cap


def told(target: Callable[..., Any], options: Options) -> list[float]:
    """The caps among a function's parameters, as they are set or by default."""
    values = {p.name: options.settings.get(p.name, p.default) for p in parameters(target)}
    return caps_among(values)


def told_by_attributes(module: object) -> list[float]:
    """The caps among the attributes of a module and of its configuration."""
    config = getattr(module, "config", None)
    values = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
    return [*caps_among(vars(module)), *caps_among(values)]


def caps_among(values: Mapping[str, Any]) -> list[float]:
    """Positive numbers whose name says that they are a cap."""
    return [
        float(value)
        for name, value in values.items()
        if NAME.search(plain_name(name)) and type(value) in (int, float) and value > 0
    ]


def measured(ways: Mapping[Shape, Sequence[Function]]) -> list[float]:
    """The cap that shows between a key whose score is huge and a key whose score is 0; none where weights vanish."""
    seen = (measure(caller, caller.fit(shape)) for shape, callers in ways.items() for caller in callers)
    return [cap for cap in seen if cap is not None][:1]


def measure(caller: Function, shape: Shape) -> float | None:
    """The difference of two scores, read off the weights that one-hot values show."""
    keys = shape.value_dim
    case = caller.base(
        replace(shape, keys=keys, queries=keys if shape.queries == shape.keys else shape.queries)
    )
    key = torch.zeros_like(case.key)
    key[:, :, 0] = 1.0
    once = torch.eye(keys, dtype=torch.float64).expand_as(case.value).clone()
    try:
        seen = caller.observe(replace(case, query=torch.full_like(case.query, FAR), key=key, value=once))
    except CallFailed:
        return None
    weights = seen.output[..., -1, :keys].double()  # the last query sees every key, causal or not
    ratio = (weights[..., 0] / weights[..., 1]).flatten()
    if not bool((ratio > 1).all()) or not bool(ratio.isfinite().all()) or ratio.max() > 1.001 * ratio.min():
        return None
    cap = ratio.mean().log().item()
    return float(f"{cap:.5g}" if cap < PRECISE else f"{cap:.3g}")
