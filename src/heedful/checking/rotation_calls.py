"""The ways in which rotary functions and modules are called."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from heedful.checking import layouts
from heedful.checking.calling import CallFailed, call_quietly, tensors_in
from heedful.checking.construction import build, left_for_call
from heedful.checking.options import Options
from heedful.checking.roles import ROTATING, assign, parameters
from heedful.checking.tables import TurnReading, TurnStages, rotated

ROLES = (
    "query", "key", "input", "cosine", "sine", "frequencies", "positions", "width", "head_dim", "length", "base",
    "start", "queries",
)  # fmt: skip
BATCH, HEADS, LENGTH, SIZE = 2, 3, 5, 8
LONGEST = 4096


@dataclass(frozen=True, eq=False)
class Way:
    """One way to get rotated tensors, or tables of cosines and sines, out of a target.

    Attributes:
        call: From (query, key) in the target's layout to what it returns.
        layout: Layout of query and key; empty when the target makes tables.
        style: How cosines and sines of pairs fill the columns: "half", "interleaved", "pairs" (one column for each
            pair) or "complex".
        own_positions: Whether positions are made by the target.
        words: Conventions to report.
    """

    call: Callable[[Tensor, Tensor], object]
    layout: str = ""
    style: str = "half"
    own_positions: bool = True
    words: tuple[str, ...] = ()
    length: int = LENGTH
    dtype: torch.dtype = torch.float32
    cache: dict[str, list[Tensor]] = field(default_factory=dict)

    @property
    def tells_layout(self) -> bool:
        """Whether it turns tensors itself, so that the pairing of columns can be seen."""
        return bool(self.layout)

    @cached_property
    def query(self) -> Tensor:
        """(B, H, L, D)."""
        return self.random(1)

    @cached_property
    def key(self) -> Tensor:
        """(B, H, L, D)."""
        return self.random(2)

    def random(self, seed: int) -> Tensor:
        """Entries of unit variance, rounded to the dtype in use."""
        batch = 1 if self.layout == "ld" else BATCH
        heads = 1 if self.layout in ("bld", "ld") else HEADS
        random = torch.Generator().manual_seed(seed)
        return torch.randn(batch, heads, self.length, SIZE, generator=random).to(self.dtype).double()

    def longer(self, length: int, dtype: torch.dtype) -> "Way":
        """The same with more tokens, and in another dtype."""
        return replace(self, length=length, dtype=dtype, cache={})

    def works(self) -> bool:
        """Whether this way gives tensors of the right shapes."""
        try:
            self.seen()
        except CallFailed:
            return False
        return True

    def seen(self) -> list[Tensor]:
        """Rotated query and key, or cosines and sines.

        Raises:
            CallFailed: The target raised, or returned something else.
        """
        if "seen" not in self.cache:
            self.cache["seen"] = self.look()
        return self.cache["seen"]

    def look(self) -> list[Tensor]:
        """Call the target."""
        if not self.layout:
            return self.tables(tensors_in(self.call(self.query, self.key)))
        query, key = (layouts.into(x, self.layout).to(self.dtype, copy=True) for x in (self.query, self.key))
        found = [t for t in tensors_in(self.call(query, key)) if t.shape == query.shape]
        if len(found) < 2:
            raise CallFailed("it returned no rotated query and key")
        return [layouts.out_of(t.double(), self.layout) for t in found[:2]]

    def tables(self, found: Sequence[Tensor]) -> list[Tensor]:
        """Cosines and sines, (L, columns) each."""
        width = SIZE if self.style in ("half", "interleaved") else SIZE // 2
        if self.style == "complex":
            found = [part for t in found if t.is_complex() for part in (t.real, t.imag)]
        found = [t for t in found if not t.is_complex()]
        flat = [t.detach().double().reshape([n for n in t.shape if n != 1]) for t in found]
        fitting = [t for t in flat if t.shape == (self.length, width)]
        if len(fitting) < 2:
            raise CallFailed("it returned no two tables")
        return fitting[:2]

    def predict(self, reading: TurnReading, stages: TurnStages) -> list[Tensor]:
        """What should be seen."""
        if self.layout:
            return list(rotated(self.query, self.key, reading, stages))
        steps = stages.frequencies(stages.exponents(SIZE, "size"), reading.base)
        angles = (
            stages.places(torch.zeros(1, 1, self.length, SIZE), reading.start).reshape(-1, 1)
            * steps
            * reading.sign
        )
        return [fill(angles.cos(), self.style), fill(angles.sin(), self.style)]


def fill(x: Tensor, style: str) -> Tensor:
    """One column for each pair, or two."""
    if style == "half":
        return torch.cat([x, x], -1)
    return x.repeat_interleave(2, -1) if style == "interleaved" else x


def given_tables(length: int, style: str) -> tuple[Tensor, Tensor]:
    """Right cosines and sines, to hand over."""
    steps = 10000.0 ** (-torch.arange(0, SIZE, 2, dtype=torch.float64) / SIZE)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * steps
    return fill(angles.cos(), style).float(), fill(angles.sin(), style).float()


def ways(target: Any, options: Options) -> Iterator[Way]:
    """Every way to call the target that its parameters suggest."""
    if inspect.isclass(target):
        built = build(target, options, LONGEST, sizes=((1, 1, SIZE),))
        target, options = built, left_for_call(target, options)
    if isinstance(target, nn.Module):
        target.eval()
        yield from module_ways(target, options)
        return
    yield from function_ways(target, target, options)


def module_ways(module: nn.Module, options: Options) -> Iterator[Way]:
    """Through `forward`, and through a method whose name says that it rotates."""
    yield from function_ways(module, module.forward, options)
    for name in (*ROTATING, "apply"):
        method = getattr(module, name, None)
        if callable(method) and name in vars(type(module)):
            yield from function_ways(method, method, options)


def function_ways(
    function: Callable[..., Any], described: Callable[..., Any], options: Options
) -> Iterator[Way]:
    """All combinations of layout and tables for one callable."""
    names = assign(described, ROLES)
    tried = [options.layout] if options.layout else layouts.SPLIT
    fixed = dict(options.settings)
    if "base" in names:
        fixed[names["base"]] = 10000.0
    if not {"query", "input", "key"} & names.keys():
        yield from table_ways(function, names, fixed)
        return
    if {"cosine", "sine"} <= names.keys() or "frequencies" in names:
        for layout in tried:
            yield from handed_ways(function, names, fixed, layout)
        return
    for layout in tried:
        yield from own_ways(function, described, names, fixed, layout)
    yield from forward_tables(function, names, fixed)


def sides(names: dict[str, str], query: Tensor, key: Tensor) -> list[dict[str, Tensor]]:
    """Arguments for one call with both, or for a call with each."""
    if "query" in names and "key" in names:
        return [{names["query"]: query, names["key"]: key}]
    name = names.get("input") or names.get("query") or names["key"]
    return [{name: query}, {name: key}]


def caller(
    function: Callable[..., Any], names: dict[str, str], extra: Callable[[Tensor], dict[str, Any]]
) -> Any:
    """A function of (query, key) that calls the target once or twice."""
    return lambda query, key: [
        call_quietly(function, (), {**given, **extra(query)}) for given in sides(names, query, key)
    ]


def own_ways(
    function: Any, described: Any, names: dict[str, str], fixed: dict[str, Any], layout: str
) -> Iterator[Way]:
    """The target makes cosines and sines by itself."""
    axis = {"bhld": 2, "blhd": 1, "bld": 1, "ld": 0}[layout]
    positions: list[Callable[[Tensor], dict[str, Any]]] = [lambda x: {}]
    if "positions" in names:
        name = names["positions"]
        positions = [
            lambda x: {name: torch.arange(x.shape[axis])},
            lambda x: {name: torch.arange(x.shape[axis])[None]},
        ]
    sizes = {names[r]: SIZE for r in ("width", "head_dim") if r in names and is_required(described, names[r])}
    for place in positions:

        def extra(x: Tensor, place: Any = place) -> dict[str, Any]:
            lengths = {names["length"]: x.shape[axis]} if "length" in names else {}
            return {**fixed, **sizes, **lengths, **place(x)}

        yield Way(caller(function, names, extra), layout, words=(f"layout {layouts.WORDS[layout]}",))


def handed_ways(function: Any, names: dict[str, str], fixed: dict[str, Any], layout: str) -> Iterator[Way]:
    """Cosines and sines are handed over, in several shapes."""
    words = (f"layout {layouts.WORDS[layout]}",)
    axis = {"bhld": 2, "blhd": 1, "bld": 1, "ld": 0}[layout]
    if "frequencies" in names:

        def complex_extra(x: Tensor) -> dict[str, Any]:
            cosine, sine = given_tables(x.shape[axis], "pairs")
            return {**fixed, names["frequencies"]: torch.complex(cosine, sine)}

        yield Way(caller(function, names, complex_extra), layout, "complex", False, words)
        return
    for style in ("half", "interleaved", "pairs"):
        for lead in ((), (1,), (1, 1)):

            def extra(x: Tensor, style: str = style, lead: tuple[int, ...] = lead) -> dict[str, Any]:
                cosine, sine = given_tables(x.shape[axis], style)
                shape = (*lead, *cosine.shape)
                return {**fixed, names["cosine"]: cosine.reshape(shape), names["sine"]: sine.reshape(shape)}

            yield Way(caller(function, names, extra), layout, style, False, words)


def table_ways(function: Any, names: dict[str, str], fixed: dict[str, Any]) -> Iterator[Way]:
    """A function of (dim, length) that makes tables."""
    names = dict(names)
    free = [p.name for p in parameters(function) if p.default is p.empty and p.name not in names.values()]
    width = names.get("head_dim") or names.get("width") or (free.pop(0) if free else None)
    length = names.get("length") or names.get("positions") or (free.pop(0) if free else None)
    if width is None and length is None:
        return
    for style in ("half", "interleaved", "pairs", "complex"):
        for as_tensor in (False, True):

            def make(query: Tensor, key: Tensor, as_tensor: bool = as_tensor) -> object:
                count = query.shape[-2]
                given: dict[str, Any] = (
                    {length: torch.arange(count) if as_tensor else count} if length else {}
                )
                return call_quietly(function, (), {**fixed, **given} | ({width: SIZE} if width else {}))

            yield Way(make, "", style)


def forward_tables(function: Any, names: dict[str, str], fixed: dict[str, Any]) -> Iterator[Way]:
    """A module whose forward takes tensors and hands back tables for them."""
    if "query" in names and "key" in names:
        return
    name = names.get("input") or names.get("query") or names["key"]
    for style in ("half", "interleaved", "pairs", "complex"):

        def make(query: Tensor, key: Tensor) -> object:
            given = {name: query.float(), **fixed}
            if "positions" in names:
                given[names["positions"]] = torch.arange(query.shape[-2])[None]
            if "length" in names:
                given[names["length"]] = query.shape[-2]
            return call_quietly(function, (), given)

        yield Way(make, "", style)


def is_required(function: Callable[..., Any], name: str) -> bool:
    """Whether this parameter has no default."""
    return any(p.name == name and p.default is p.empty for p in parameters(function))
