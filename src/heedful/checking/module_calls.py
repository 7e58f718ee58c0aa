"""How a module is called, and what the right answer of a module with its parameters is."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from heedful.checking import cases
from heedful.checking.calling import Observing, Passing, call_quietly, likeliest, no_output, tensors_in
from heedful.checking.cases import Case, Shape
from heedful.checking.projections import Found, find, projections
from heedful.checking.readings import Reading
from heedful.checking.stages import Call, Linear


@dataclass(frozen=True, eq=False)
class View:
    """A module as the mathematics sees it: its matrices, and how many heads they are for."""

    found: Found
    heads: int
    kv_heads: int
    known: dict[str, dict[str, Linear] | None] = field(default_factory=dict)

    def matrices(self, order: str) -> dict[str, Linear] | None:
        """Query, key, value and output matrices when fused ones are read in this order."""
        if order not in self.known:
            self.known[order] = projections(self.found, order, self.heads, self.kv_heads)
        return self.known[order]

    def before(self, x: Tensor, reading: Reading) -> Tensor:
        """What is projected: the input, or its normalization."""
        if not reading.normed or self.found.norm is None:
            return x
        return converted(self.found.norm, x.dtype)(x)

    @property
    def head_dim(self) -> int:
        """The size of one head of the queries."""
        matrices = self.found.matrices
        if "query" in matrices:
            return matrices["query"].weight.shape[0] // self.heads
        return matrices["fused"].weight.shape[0] // (self.heads + 2 * self.kv_heads)

    def call(self, case: Case, reading: Reading, form: str) -> Call:
        """The call as the mathematics sees it."""
        matrices = self.matrices(reading.order)
        if matrices is None:
            raise RuntimeError(f"the fused projection can't be read as {reading.order}")
        call = reading.call(case, form)
        query, key, value = (self.before(x[:, 0], reading) for x in (call.query, call.key, call.value))
        unasked = ~call.padding if case.same and call.padding is not None else None
        call = replace(call, query=query, key=key, value=value, unasked=unasked, merged=False)
        return replace(call, heads=self.heads, kv_heads=self.kv_heads, projections=matrices)


@dataclass(frozen=True)
class Module(Observing):
    """A module with the parameters of its `forward` sorted out.

    Attributes:
        module: The target, prepared.
        names: Role to parameter name.
        view: Its matrices.
        widths: Features of query, key and value input.
        layout: "ble" or "lbe".
        constants: Parameter name to a value that never changes.
        uses_memory: Whether an input to attend to, apart from the main one, is given.
        passing: How a mask is handed over, if at all.
        no_mask: What stands for no mask where the target insists on one, a key of NO_MASK; else empty.
        modes: Context managers to call it in.
        array: Modules take tensors.
    """

    module: nn.Module
    names: Mapping[str, str]
    view: View
    widths: tuple[int, int, int]
    layout: str = "ble"
    constants: Mapping[str, object] = field(default_factory=dict)
    uses_memory: bool = True
    passing: Passing | None = None
    no_mask: str = ""
    modes: tuple[Callable[[], Any], ...] = ()
    array: str = "torch"

    @property
    def inputs(self) -> dict[str, str]:
        """Side of the case to parameter name."""
        if "query" in self.names and "key" in self.names:
            return {side: self.names[side] for side in ("query", "key", "value") if side in self.names}
        if "memory" in self.names and self.uses_memory:
            return {"query": self.names.get("input") or self.names["query"], "key": self.names["memory"]}
        return {"query": self.names.get("input") or self.names["query"]}

    @cached_property
    def same(self) -> bool:
        """Whether it attends to its only input."""
        return len(self.inputs) == 1

    def fit(self, shape: Shape) -> Shape:
        """The sizes with the module's own heads."""
        view = self.view
        return replace(shape, heads=view.heads, kv_heads=view.kv_heads, head_dim=view.head_dim)

    def features(self, shape: Shape) -> int:
        """The width of the query's input."""
        return self.widths[0]

    def base(self, shape: Shape) -> Case:
        """Inputs of these lengths."""
        case = cases.inputs(shape.batch, shape.queries, shape.keys, self.widths, self.same)
        return replace(case, value=case.key) if len(self.inputs) == 2 else case

    def arguments(self, case: Case, dtype: torch.dtype) -> dict[str, Any]:
        """Parameter name to value, for this case."""
        given: dict[str, Any] = {}
        for side, name in self.inputs.items():
            x = getattr(case, side)[:, 0]
            given[name] = (x.transpose(0, 1) if self.layout == "lbe" else x).to(dtype, copy=True)
        given |= self.masked(case, self.view.heads, dtype)
        if case.bias is not None and "bias" in self.names:
            given[self.names["bias"]] = case.bias.to(dtype, copy=True)
        if "causal" in self.names:
            given[self.names["causal"]] = case.causal
        return {**self.constants, **given}

    @property
    def explain(self) -> Callable[[Case, Reading, str], Call]:
        """How a case becomes a call of the mathematics."""
        return self.view.call

    def nudged(self, seed: int) -> "Module":
        """The same with every parameter moved by a few percent."""
        module = copy.deepcopy(self.module)
        random = torch.Generator().manual_seed(2000 + seed)
        with torch.no_grad():
            for p in module.parameters():
                if p.is_floating_point():
                    p.mul_(1 + cases.NUDGE * torch.randn(p.shape, generator=random).to(p.dtype))
        view = View(find(module), self.view.heads, self.view.kv_heads)
        return replace(self, module=module, view=view)

    def run(self, arguments: dict[str, Any], seed: int = 0) -> object:
        """Call the target."""
        dtypes = {x.dtype for x in arguments.values() if isinstance(x, Tensor) and x.is_floating_point()}
        wide = dtypes - {torch.float32}
        module = self.module if not wide else converted(self.module, wide.pop())
        return call_quietly(module, (), arguments, seed, self.modes)

    def parts(self, result: object, case: Case) -> tuple[Tensor, str, Tensor | None]:
        """Output, its form, and weights, still attached to the graph."""
        found = tensors_in(result)
        batch, queries, keys = case.shape.batch, case.shape.queries, case.shape.keys
        width = self.out_features
        for tensor in found:
            output = tensor.transpose(0, 1) if self.layout == "lbe" and tensor.ndim == 3 else tensor
            if output.shape != (batch, queries, width):
                continue
            shapes = [(batch, heads, queries, keys) for heads in (self.view.heads, 1)] + [
                (batch, queries, keys)
            ]
            weights = [t for t in found if t is not tensor and t.shape in shapes]
            return output, "ble", likeliest(weights, len(found) == 2)
        words = f"batch {batch}, queries {queries}, keys {keys}, features {self.widths[0]}"
        raise no_output(found, result, words)

    @cached_property
    def out_features(self) -> int:
        """Features of the output."""
        matrices = self.view.found.matrices
        if "output" in matrices:
            return matrices["output"].weight.shape[0]
        views = (self.view.matrices(order) for order in ("", "qkv rhd", "kv rhd"))
        value = next(m["value"].weight.shape[0] for m in views if m is not None)
        return value * self.view.heads // self.view.kv_heads

    def gradients(self, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gradients by side of the case, as they reach the parameters: one input may be several sides."""
        found: dict[str, Tensor] = {}
        for side, gradient in wanted.items():
            name = self.inputs.get(side) or self.inputs.get("key") or self.inputs["query"]
            arranged = gradient[:, 0].transpose(0, 1) if self.layout == "lbe" else gradient[:, 0]
            found[name] = found[name] + arranged if name in found else arranged
        return found


def converted(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of the module in another dtype."""
    return copy.deepcopy(module).to(dtype)
