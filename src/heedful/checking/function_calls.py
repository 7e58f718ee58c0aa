"""How a function of (query, key, value, ...) is called."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from heedful.checking import cases
from heedful.checking.calling import (
    Observing,
    Passing,
    call_quietly,
    into_layout,
    likeliest,
    no_output,
    out_of_layout,
    tensors_in,
    weights_form,
)
from heedful.checking.cases import Case, Shape
from heedful.checking.readings import Reading
from heedful.checking.stages import Call


def split_call(case: Case, reading: Reading, form: str) -> Call:
    """A call with heads handed over split."""
    return reading.call(case, form)


def joined_call(case: Case, reading: Reading, form: str) -> Call:
    """A call with heads handed over joined, as (B, L, H * D)."""
    call = reading.call(case, form)
    query, key, value = (x.transpose(1, 2).flatten(2) for x in (call.query, call.key, call.value))
    shape = case.shape
    return replace(
        call, query=query, key=key, value=value, heads=shape.heads, kv_heads=shape.kv_heads, merged=False
    )


@dataclass(frozen=True)
class Function(Observing):
    """A function with its parameters sorted out.

    Attributes:
        function: The target.
        names: Role to parameter name.
        positional: Parameters that take no keyword, in order.
        layout: Layout of query, key and value.
        constants: Parameter name to a value that never changes.
        array: "torch" or "numpy".
        passing: How a mask is handed over, if at all.
        modes: Context managers to call it in.
    """

    function: Callable[..., Any]
    names: Mapping[str, str]
    layout: str = "bhld"
    positional: tuple[str, ...] = ()
    constants: Mapping[str, object] = field(default_factory=dict)
    array: str = "torch"
    passing: Passing | None = None
    modes: tuple[Callable[[], Any], ...] = ()

    @property
    def inputs(self) -> dict[str, str]:
        """Side of the case to parameter name."""
        return {side: self.names[side] for side in ("query", "key", "value")}

    def base(self, shape: Shape) -> Case:
        """Queries, keys and values of these sizes."""
        return cases.plain(shape)

    def arguments(self, case: Case, dtype: torch.dtype) -> dict[str, Any]:
        """Parameter name to value, for this case."""
        sides = {"query": case.query, "key": case.key, "value": case.value}
        given = {self.names[r]: into_layout(x, self.layout).to(dtype, copy=True) for r, x in sides.items()}
        if case.bias is not None and "bias" in self.names:
            given[self.names["bias"]] = case.bias.to(dtype, copy=True)
        mask = None if self.passing is None else self.passing.give(case, case.shape.heads)
        if self.passing is not None and mask is not None:
            given[self.names[self.passing.role]] = mask.to(dtype) if mask.is_floating_point() else mask
        sizes: dict[str, object] = {
            "causal": case.causal,
            "heads": case.shape.heads,
            "kv_heads": case.shape.kv_heads,
        }
        if self.needs_scale:
            sizes["scale"] = case.shape.head_dim**-0.5
        named = {self.names[role]: value for role, value in sizes.items() if role in self.names}
        return {**self.constants, **named, **given}

    @property
    def needs_scale(self) -> bool:
        """Whether the scale is a parameter without a default."""
        return self.constants.get(self.names.get("scale", ""), 0.0) is None

    @property
    def explain(self) -> Callable[[Case, Reading, str], Call]:
        """How a case becomes a call of the mathematics."""
        return joined_call if self.layout == "ble" else split_call

    def run(self, arguments: dict[str, Any], seed: int = 0) -> object:
        """Call the target."""
        if self.array == "numpy":
            arguments = {n: x.detach().numpy() if isinstance(x, Tensor) else x for n, x in arguments.items()}
        ordered = [arguments[name] for name in self.positional if name in arguments]
        named = {name: x for name, x in arguments.items() if name not in self.positional}
        return call_quietly(self.function, ordered, named, seed, self.modes)

    def parts(self, result: object, case: Case) -> tuple[Tensor, str, Tensor | None]:
        """Output, its form, and weights, still attached to the graph."""
        found = tensors_in(result)
        for tensor in found:
            arranged = out_of_layout(tensor, self.layout, case.shape)
            if arranged is not None:
                others = (weights_form(t, self.layout, case.shape) for t in found if t is not tensor)
                return *arranged, likeliest([w for w in others if w is not None], len(found) == 2)
        raise no_output(found, result, case.shape.words())

    def canonical(self, x: Tensor) -> Tensor:
        """A tensor in the target's layout as (B, H, L, D), or as (B, L, E) where heads come joined."""
        if self.layout == "blhd":
            return x.transpose(1, 2)
        if self.layout == "bld":
            return x[:, None]
        return x[None, None] if self.layout == "ld" else x
