"""Calls a target: hands it tensors in the layout it wants, and brings what it returns into one form."""

import contextlib
import dataclasses
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from heedful.checking.cases import Case, Shape
from heedful.checking.problems import CannotCheck
from heedful.checking.readings import Reading
from heedful.checking.stages import Call


class CallFailed(Exception):
    """The target raised, or returned something that can't be its answer."""


class Seen(NamedTuple):
    """What a target returned, as float64.

    `form` is "bhld" for output (B, H, L, Dv) and "ble" for (B, L, E). `weights` are (B, H, L, S), or (B, L, S)
    when averaged over heads, or None.
    """

    output: Tensor
    form: str
    weights: Tensor | None
    dtype: torch.dtype


@dataclass(frozen=True)
class Passing:
    """One way to hand over a mask: the parameter's role, the tensor's shape, and its kind of numbers.

    Shapes are spelled with b, h, l, s for the sizes, n for batch times heads, and 1.
    Kinds: "bool"; "int" (0 and 1); "float" (0 and minus infinity, to be added).
    """

    role: str
    shape: str
    kind: str

    @property
    def per_sample(self) -> bool:
        """Whether samples may have different masks."""
        return self.shape[0] in "bn"

    @property
    def per_head(self) -> bool:
        """Whether heads may have different masks."""
        return self.shape[:2] == "bh"

    @property
    def over_keys(self) -> bool:
        """Whether the tensor says something about keys only."""
        return "l" not in self.shape

    def give(self, case: Case) -> Tensor:
        """The tensor for this case."""
        shape = case.shape
        if self.over_keys:
            if case.padding is None:
                raise ValueError(f"case {case.name} has no padding to hand over as {self.shape}")
            mask = case.padding if self.shape == "bs" else case.padding[:, None, None, :]
        else:
            if case.mask is None:
                raise ValueError(f"case {case.name} has no mask to hand over as {self.shape}")
            mask = self.arrange(case.mask, shape)
        if self.kind == "bool":
            return mask.clone()
        if self.kind == "int":
            return mask.long()
        return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf)

    def arrange(self, mask: Tensor, shape: Shape) -> Tensor:
        """(B or 1, H or 1, L, S) in the wanted shape."""
        if self.shape == "ls":
            return mask[0, 0]
        if self.shape == "bls":
            return mask.expand(shape.batch, -1, -1, -1)[:, 0]
        if self.shape == "nls":
            return mask.expand(shape.batch, shape.heads, -1, -1).flatten(0, 1)
        if self.shape == "b1ls":
            return mask.expand(shape.batch, -1, -1, -1)[:, :1]
        return mask.expand(shape.batch, shape.heads, -1, -1)


MASK_SHAPES = ("b1ls", "bhls", "ls", "bls", "nls", "b11s", "bs")
KINDS = ("bool", "float", "int")


def into_layout(x: Tensor, layout: str) -> Tensor:
    """(B, H, L, D) in the layout that the target wants."""
    if layout == "bhld":
        return x
    if layout == "blhd":
        return x.transpose(1, 2)
    if layout == "bld":
        return x[:, 0]
    if layout == "ld":
        return x[0, 0]
    if layout == "ble":
        return x.transpose(1, 2).flatten(2)
    raise ValueError(f"no layout is called {layout!r}")


def out_of_layout(output: Tensor, layout: str, shape: Shape) -> tuple[Tensor, str] | None:
    """The target's output as ("bhld" or "ble"), told by its shape; None when it fits neither."""
    b, h, n, d = shape.batch, shape.heads, shape.queries, shape.value_dim
    if layout == "ld":
        return (output[None, None], "bhld") if output.shape == (n, d) else None
    if layout == "bld":
        return (output[:, None], "bhld") if output.shape == (b, n, d) else None
    if layout != "ble" and output.shape == (b, h, n, d):
        return output, "bhld"
    if layout != "ble" and output.shape == (b, n, h, d):
        return output.transpose(1, 2), "bhld"
    return (output, "ble") if output.shape == (b, n, h * d) else None


def weights_form(weights: Tensor, layout: str, shape: Shape) -> Tensor | None:
    """Weights as (B, H, L, S) or (B, L, S); None when the shape is neither."""
    b, h, n, s = shape.batch, shape.heads, shape.queries, shape.keys
    if layout == "ld":
        return weights[None, None] if weights.shape == (n, s) else None
    if weights.shape == (b, n, s):
        return weights[:, None] if layout == "bld" else weights
    if weights.shape == (b * h, n, s):
        return weights.unflatten(0, (b, h))
    if weights.shape == (b, n, h, s):
        return weights.transpose(1, 2)
    return weights if weights.shape == (b, h, n, s) else None


def tensors_in(result: object) -> list[Tensor]:
    """The tensors of a result that may be a tensor, an array, a tuple, a dictionary or a small object."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, np.ndarray):
        return [torch.from_numpy(np.array(result))]
    if callable(getattr(result, "full", None)) and hasattr(result, "logsumexp"):
        return [result.full()]  # heedful's own lazy weights
    if isinstance(result, Mapping):
        parts = list(result.values())
    elif isinstance(result, (tuple, list)):
        parts = list(result)
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        parts = [getattr(result, f.name) for f in dataclasses.fields(result)]
    else:
        return []
    return [t for part in parts for t in tensors_in(part)]


@contextlib.contextmanager
def quiet(seed: int = 0) -> Iterator[None]:
    """Hold every source of randomness, keep warnings to ourselves, and put all back afterwards."""
    python, numbers = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)


def split_call(case: Case, reading: Reading, form: str) -> Call:
    """A call with heads handed over split."""
    return reading.call(case, form)


def joined_call(case: Case, reading: Reading, form: str) -> Call:
    """A call with heads handed over joined, as (B, L, H * D)."""
    call = reading.call(case, form)
    query, key, value = (x.transpose(1, 2).flatten(2) for x in (call.query, call.key, call.value))
    shape = case.shape
    return replace(call, query=query, key=key, value=value, heads=shape.heads, kv_heads=shape.kv_heads)


@dataclass(frozen=True)
class Function:
    """How a function of (query, key, value, ...) is called.

    Attributes:
        function: The target.
        names: Role to parameter name.
        positional: Parameters that take no keyword, in order.
        layout: Layout of query, key and value.
        constants: Parameter name to a value that never changes.
        array: "torch" or "numpy".
        passing: How a mask is handed over, if at all.
    """

    function: Callable[..., Any]
    names: Mapping[str, str]
    layout: str = "bhld"
    positional: tuple[str, ...] = ()
    constants: Mapping[str, object] = field(default_factory=dict)
    array: str = "torch"
    passing: Passing | None = None

    def arguments(self, case: Case, dtype: torch.dtype) -> dict[str, Any]:
        """Parameter name to tensor, for this case."""
        sides = {"query": case.query, "key": case.key, "value": case.value}
        given = {self.names[r]: into_layout(x, self.layout).to(dtype, copy=True) for r, x in sides.items()}
        if case.bias is not None and "bias" in self.names:
            given[self.names["bias"]] = case.bias.to(dtype, copy=True)
        if self.passing is not None and (case.mask is not None or case.padding is not None):
            mask = self.passing.give(case)
            if case.bias is not None and self.passing.kind == "float" and "bias" not in self.names:
                mask = mask + case.bias[:, :1]
            given[self.names[self.passing.role]] = mask.to(dtype) if mask.is_floating_point() else mask
        if "causal" in self.names:
            given[self.names["causal"]] = case.causal
        if self.constants.get(self.names.get("scale", ""), 0.0) is None:
            given[self.names["scale"]] = case.query.shape[-1] ** -0.5
        if "heads" in self.names:
            given[self.names["heads"]] = case.query.shape[1]
        if "kv_heads" in self.names:
            given[self.names["kv_heads"]] = case.key.shape[1]
        return {**self.constants, **given}

    @property
    def explain(self) -> Callable[[Case, Reading, str], Call]:
        """How a case becomes a call of the mathematics."""
        return joined_call if self.layout == "ble" else split_call

    def run(self, arguments: dict[str, Any], seed: int = 0) -> object:
        """Call the target."""
        if self.array == "numpy":
            arguments = {n: x.numpy() if isinstance(x, Tensor) else x for n, x in arguments.items()}
        ordered = [arguments.pop(name) for name in self.positional if name in arguments]
        with quiet(seed):
            try:
                return self.function(*ordered, **arguments)
            except SystemExit as error:
                raise CannotCheck(f"it ends the program (sys.exit) when it is called: {error}") from error
            except Exception as error:
                raise CallFailed(f"{type(error).__name__}: {error}") from error

    def observe(self, case: Case, dtype: torch.dtype = torch.float32, seed: int = 0) -> Seen:
        """Run one case and bring the answer into one form.

        Raises:
            CallFailed: The target raised, or the output has a shape that makes no sense.
        """
        return self.read(self.run(self.arguments(case, dtype), seed), case)

    def read(self, result: object, case: Case) -> Seen:
        """Find output and weights in what the target returned.

        Raises:
            CallFailed: No tensor in it has the shape of an output.
        """
        output, form, weights = self.parts(result, case)
        weights = None if weights is None else weights.detach().double()
        return Seen(output.detach().double(), form, weights, output.dtype)

    def parts(self, result: object, case: Case) -> tuple[Tensor, str, Tensor | None]:
        """Output, its form, and weights, still attached to the graph."""
        shape = case.shape
        found = tensors_in(result)
        for tensor in found:
            arranged = out_of_layout(tensor, self.layout, shape)
            if arranged is not None:
                others = (weights_form(t, self.layout, shape) for t in found if t is not tensor)
                return *arranged, next((w for w in others if w is not None), None)
        shapes = ", ".join(str(tuple(t.shape)) for t in found) or f"a {type(result).__name__}"
        raise CallFailed(f"it returned {shapes} for {shape.words()}")

    def differentiable(self, arguments: dict[str, Any], case: Case) -> Tensor:
        """The output, attached to the graph."""
        return self.parts(self.run(arguments), case)[0]

    def canonical(self, x: Tensor) -> Tensor:
        """A tensor in the target's layout as (B, H, L, D), or as (B, L, E) where heads come joined."""
        if self.layout == "blhd":
            return x.transpose(1, 2)
        if self.layout == "bld":
            return x[:, None]
        return x[None, None] if self.layout == "ld" else x
