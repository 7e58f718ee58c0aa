"""How a function of (query, key, value, ...) is called."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from heedful.checking import cases, layouts
from heedful.checking.calling import (
    CallFailed,
    Observing,
    Passing,
    call_quietly,
    likeliest,
    no_output,
    output_form,
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


def packed_call(case: Case, reading: Reading, form: str) -> Call:
    """A call with query, key and value in one tensor: what padded queries get is nobody's business."""
    return without_padded_queries(split_call(case, reading, form))


def packed_joined_call(case: Case, reading: Reading, form: str) -> Call:
    """The same with heads joined, too."""
    return without_padded_queries(joined_call(case, reading, form))


def without_padded_queries(call: Call) -> Call:
    """The call, in which queries at padded positions don't count."""
    return call if call.padding is None else replace(call, unasked=~call.padding)


SIDES = {"q": "query", "k": "key", "v": "value"}


@dataclass(frozen=True)
class Function(Observing):
    """A function with its parameters sorted out.

    Attributes:
        function: The target.
        names: Role to parameter name.
        positional: Parameters that take no keyword, in order.
        layout: Layout of query, key, value and output.
        packing: Layout of the tensor that holds several of them; empty when there is none.
        order: What that tensor holds: the letters of query, key and value in order, or of key and value.
        constants: Parameter name to a value that never changes.
        array: "torch" or "numpy".
        passing: How a mask is handed over, if at all.
        no_mask: What stands for no mask where the target insists on one, a key of NO_MASK; else empty.
        modes: Context managers to call it in.
    """

    function: Callable[..., Any]
    names: Mapping[str, str]
    layout: str = "bhld"
    packing: str = ""
    order: str = ""
    positional: tuple[str, ...] = ()
    constants: Mapping[str, object] = field(default_factory=dict)
    array: str = "torch"
    passing: Passing | None = None
    no_mask: str = ""
    modes: tuple[Callable[[], Any], ...] = ()

    @property
    def inputs(self) -> dict[str, str]:
        """Side of the case to parameter name."""
        return {side: self.names.get(side) or self.names["packed"] for side in SIDES.values()}

    @property
    def same(self) -> bool:
        """Whether queries and keys have one length by construction."""
        return len(self.order) == 3

    @property
    def arrangement(self) -> tuple[str, ...]:
        """What tells the ways of handing over the inputs apart."""
        return (self.layout, self.packing, self.order, self.no_mask)

    @property
    def most(self) -> int:
        """How many mistakes are tried together with this order of the parts."""
        return 2 if self.order in ("", "qkv", "kv") else 0

    def fit(self, shape: Shape) -> Shape:
        """The sizes that the layout leaves: no head axis means one head; heads are never as many as packed parts."""
        if self.layout == "bld":
            return replace(shape, heads=1, kv_heads=1)
        if self.layout == "ld":
            return replace(shape, batch=1, heads=1, kv_heads=1)
        return replace(shape, heads=4, kv_heads=4) if self.packing else shape

    def features(self, shape: Shape) -> int:
        """The size of all heads together."""
        return shape.heads * shape.head_dim

    def packs(self, shape: Shape) -> bool:
        """Whether tensors of these sizes can be packed as the target wants it."""
        one_width = shape.head_dim == shape.value_dim
        one_length = shape.queries == shape.keys and shape.heads == shape.kv_heads
        return not self.packing or (one_width and (one_length or not self.same))

    def base(self, shape: Shape) -> Case:
        """Queries, keys and values of these sizes."""
        return cases.plain(shape)

    def arguments(self, case: Case, dtype: torch.dtype) -> dict[str, Any]:
        """Parameter name to value, for this case."""
        if not self.packs(case.shape):
            raise CallFailed(f"tensors of these sizes can't be packed: {case.shape.words()}")
        sides = self.handed({"query": case.query, "key": case.key, "value": case.value})
        given = {name: x.to(dtype, copy=True) for name, x in sides.items()}
        if case.bias is not None and "bias" in self.names:
            given[self.names["bias"]] = case.bias.to(dtype, copy=True)
        given |= self.masked(case, case.shape.heads, dtype)
        sizes: dict[str, object] = {
            "causal": case.causal,
            "heads": case.shape.heads,
            "kv_heads": case.shape.kv_heads,
        }
        if self.needs_scale:
            sizes["scale"] = case.shape.head_dim**-0.5
        named = {self.names[role]: value for role, value in sizes.items() if role in self.names}
        return {**self.constants, **named, **given}

    def handed(self, sides: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors (B, H, L, D) by side, as the arguments that they become."""
        apart = {self.names[s]: layouts.into(x, self.layout) for s, x in sides.items() if s in self.names}
        if not self.packing:
            return apart
        parts = [sides[SIDES[letter]] for letter in self.order]
        return {**apart, self.names["packed"]: layouts.pack(parts, self.packing)}

    def gradients(self, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gradients by side of the case, as they reach the parameters."""
        return self.handed(wanted)

    @property
    def needs_scale(self) -> bool:
        """Whether the scale is a parameter without a default."""
        return self.constants.get(self.names.get("scale", ""), 0.0) is None

    @property
    def explain(self) -> Callable[[Case, Reading, str], Call]:
        """How a case becomes a call of the mathematics."""
        if self.same:
            return packed_joined_call if self.layout == "ble" else packed_call
        return joined_call if self.layout == "ble" else split_call

    def nudged(self, seed: int) -> "Function":
        """Itself: a function has no parameters that could be moved."""
        return self

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
            arranged = output_form(tensor, self.layout, case.shape)
            if arranged is not None:
                others = (weights_form(t, self.layout, case.shape) for t in found if t is not tensor)
                return *arranged, likeliest([w for w in others if w is not None], len(found) == 2)
        raise no_output(found, result, case.shape.words())
