"""Calls a target: hands it tensors in the layout it wants, and brings what it returns into one form."""

import contextlib
import dataclasses
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from heedful.checking.cases import Case, Shape
from heedful.checking.problems import CannotCheck


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

    Shapes are spelled with b, h, l, s for the sizes, n for batch times heads, and 1; b alone is a length per sample.
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

    def give(self, case: Case, heads: int) -> Tensor | None:
        """The tensor for this case, when the target has so many heads; None when the case has no such mask."""
        mask = case.padding if self.over_keys else case.mask
        if mask is None:
            return None
        if self.shape == "b":
            return mask.sum(-1)
        mask = self.arrange(mask, case.shape.batch, heads)
        if self.kind == "bool":
            return mask.clone()
        if self.kind == "int":
            return mask.long()
        added = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf)
        if case.bias is not None and not self.over_keys:
            added = added + self.arrange(case.bias, case.shape.batch, heads)
        return added

    def arrange(self, mask: Tensor, batch: int, heads: int) -> Tensor:
        """(B or 1, H or 1, L, S), or (B, S), in the wanted shape."""
        if self.over_keys:
            return mask if self.shape == "bs" else mask[:, None, None, :]
        if self.shape == "ls":
            return mask[0, 0]
        if self.shape == "bls":
            return mask.expand(batch, -1, -1, -1)[:, 0]
        if self.shape == "nls":
            return mask.expand(batch, heads, -1, -1).flatten(0, 1)
        if self.shape == "b1ls":
            return mask.expand(batch, -1, -1, -1)[:, :1]
        return mask.expand(batch, heads, -1, -1)


MASK_SHAPES = ("b1ls", "bhls", "ls", "bls", "nls", "b11s", "bs")
KINDS = ("bool", "float", "int")


def output_form(output: Tensor, layout: str, shape: Shape) -> tuple[Tensor, str] | None:
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


def likeliest(weights: Sequence[Tensor], sure: bool) -> Tensor | None:
    """Of tensors that could be weights by their shape, the first whose rows sum to 1.

    With `sure`, there is one candidate and nothing else it could be: it is taken as it is.
    """

    def normalized(x: Tensor) -> bool:
        return bool((x.detach() >= 0).all()) and (x.detach().double().sum(-1) - 1).abs().max().item() < 1e-3

    return next((x for x in weights if normalized(x)), weights[0] if sure and weights else None)


def tensors_in(result: object) -> list[Tensor]:
    """The tensors of a result that may be a tensor, an array, a tuple, a dictionary or a small object."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, np.ndarray):
        return [torch.from_numpy(np.array(result))]
    full = getattr(result, "full", None)
    if callable(full) and hasattr(result, "logsumexp"):
        return tensors_in(full())  # heedful's own lazy weights
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


def call_quietly(
    function: Callable[..., Any],
    positional: Sequence[object],
    named: Mapping[str, object],
    seed: int = 0,
    modes: Sequence[Callable[[], Any]] = (),
) -> object:
    """Call somebody's code, inside these context managers.

    Raises:
        CallFailed: It raised.
        CannotCheck: It tried to end the program.
    """
    with quiet(seed), contextlib.ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode())
        try:
            return function(*positional, **named)
        except SystemExit as error:
            raise CannotCheck(f"it ends the program (sys.exit) when it is called: {error}") from error
        except Exception as error:
            raise CallFailed(f"{type(error).__name__}: {error}") from error


# Masks that hide nothing, by what they mean.
NO_MASK: dict[str, Callable[[Shape], Tensor]] = {
    "keep": lambda shape: torch.ones(shape.queries, shape.keys, dtype=torch.bool),
    "block": lambda shape: torch.zeros(shape.queries, shape.keys, dtype=torch.bool),
    "add": lambda shape: torch.zeros(shape.queries, shape.keys),
    "keep keys": lambda shape: torch.ones(shape.batch, shape.keys, dtype=torch.bool),
    "block keys": lambda shape: torch.zeros(shape.batch, shape.keys, dtype=torch.bool),
}


class Observing:
    """What callers of functions and of modules share: dataclasses, which define `arguments`, `run` and `parts`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    names: Mapping[str, str]
    constants: Mapping[str, Any]
    layout: str
    passing: Passing | None
    no_mask: str
    most = 2  # how many mistakes are tried together with this way of calling

    @property
    def arrangement(self) -> tuple[str, ...]:
        """What tells the ways of handing over the inputs apart."""
        return (self.layout, self.no_mask)

    def masked(self, case: Case, heads: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """The mask of a case as an argument, or what stands for none; nothing where it may be left out."""
        mask = None if self.passing is None else self.passing.give(case, heads)
        if self.passing is not None and mask is not None:
            return {self.names[self.passing.role]: mask.to(dtype) if mask.is_floating_point() else mask}
        return {self.names["mask"]: NO_MASK[self.no_mask](case.shape)} if self.no_mask else {}

    def observe(self, case: Case, dtype: torch.dtype = torch.float32, seed: int = 0) -> Seen:
        """Run one case and bring the answer into one form.

        Raises:
            CallFailed: The target raised, or no tensor in its result has the shape of an output.
        """
        return self.read(self.run(self.arguments(case, dtype), seed), case)

    def read(self, result: object, case: Case) -> Seen:
        """Find output and weights in what the target returned."""
        output, form, weights = self.parts(result, case)
        weights = None if weights is None else weights.detach().double()
        return Seen(output.detach().double(), form, weights, output.dtype)

    def differentiable(self, arguments: dict[str, Any], case: Case) -> Tensor:
        """The output, attached to the graph."""
        return self.parts(self.run(arguments), case)[0]

    def arguments(self, case: Case, dtype: torch.dtype) -> dict[str, Any]:
        """Parameter name to value, for this case."""
        raise NotImplementedError

    def run(self, arguments: dict[str, Any], seed: int = 0) -> object:
        """Call the target."""
        raise NotImplementedError

    def parts(self, result: object, case: Case) -> tuple[Tensor, str, Tensor | None]:
        """Output, its form, and weights, still attached to the graph."""
        raise NotImplementedError


Target = TypeVar("Target", bound=Observing)


def no_output(found: Sequence[Tensor], result: object, what: str) -> CallFailed:
    """The error for a result without an output in it."""
    shapes = ", ".join(str(tuple(t.shape)) for t in found) or f"a {type(result).__name__}"
    return CallFailed(f"it returned {shapes} for {what}")


def with_mask_if_needed(
    target: Target, ways: Callable[[Target], tuple[dict[Shape, list[Target]], str]]
) -> tuple[dict[Shape, list[Target]], str]:
    """For each suite of sizes, the ways of calling that worked, and the first error.

    Where none did and the mask was left out, it is called with each mask that hides nothing.
    """
    found, first_error = ways(target)
    if not found and target.constants.get(target.names.get("mask", ""), "") is None:
        for no_mask in NO_MASK:
            for shape, more in ways(dataclasses.replace(target, no_mask=no_mask))[0].items():
                found.setdefault(shape, []).extend(more)
    return found, first_error
