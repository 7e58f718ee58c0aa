"""Rotary scalings by the names that transformers' configurations use."""

from collections.abc import Mapping
from typing import Any

from heedful.positions.scaling import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    Scaling,
    YarnScaling,
)


def scaling_from(parameters: Mapping[str, Any], max_length: int | None) -> Scaling | None:
    """The rule that transformers' `rope_parameters` name; None for the default.

    Args:
        parameters: With "rope_type" ("type" in older files) and that type's numbers.
        max_length: The configuration's `max_position_embeddings`, for the types that need it.

    Raises:
        ValueError: The type is not known here, or a number it needs is missing.
    """
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    try:
        return _scaling_named(kind, parameters, max_length)
    except KeyError as missing:
        raise ValueError(
            f"parameters: rope_type {kind!r} needs {missing.args[0]}, got {sorted(parameters)}."
        ) from None


def _scaling_named(kind: str, given: Mapping[str, Any], max_length: int | None) -> Scaling | None:
    def original() -> int:
        return given["original_max_position_embeddings"]

    def longest() -> int:
        if max_length is None:
            raise KeyError("max_length, the configuration's max_position_embeddings")
        return max_length

    def factor() -> float:
        explicit = given.get("factor")
        return longest() / original() if explicit is None else explicit

    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(given["factor"])
        case "dynamic":
            return DynamicNTKScaling(given["factor"], longest())
        case "yarn":
            names = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
            options = {name: given[name] for name in names if given.get(name) is not None}
            return YarnScaling(factor(), original(), given.get("attention_factor"), **options)
        case "longrope":
            factors = (given["short_factor"], given["long_factor"])
            return LongRopeScaling(*factors, original(), factor(), given.get("attention_factor"))
        case "llama3":
            return Llama3Scaling(
                given["factor"], given["low_freq_factor"], given["high_freq_factor"], original()
            )
        case "proportional":
            return ProportionalScaling(given.get("partial_rotary_factor", 1.0), given.get("factor", 1.0))
    raise ValueError(
        f"parameters: rope_type must be default, linear, dynamic, yarn, longrope, llama3 or proportional, got {kind!r}."
    )
