"""Works out how to call a function of (query, key, value, ...): which parameter is what, and in which layout."""

import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from heedful.checking import layouts
from heedful.checking.calling import CallFailed, with_mask_if_needed
from heedful.checking.cases import SUITES, Shape, plain
from heedful.checking.claims import Claims
from heedful.checking.function_calls import Function
from heedful.checking.options import KINDS, Options
from heedful.checking.problems import CannotCheck
from heedful.checking.roles import assign, parameters

ROLES = (
    "query", "key", "value", "qkv", "kv", "mask", "padding", "lengths", "bias", "causal", "scale", "dropout", "heads",
    "kv_heads", "grouped", "module", "training", "want_weights", "average",
)  # fmt: skip
SIDES = ("query", "key", "value")


class Stub(torch.nn.Module):
    """Stands for the `module` argument of the functions in the Hugging Face interface."""

    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.num_key_value_groups = groups
        self.is_causal = False
        self.eval()


def function_of(target: Callable[..., Any], options: Options) -> Function:
    """The target with its parameters sorted out, in the layout that comes first.

    Raises:
        CannotCheck: A required parameter has a name that says nothing.
    """
    names = assign(target, ROLES, in_order=SIDES)
    packed = packed_role(target, names, options)
    if packed:
        names = {role: n for role, n in names.items() if role not in packed.hides} | {"packed": packed.name}
    missing = [side for side in SIDES if side not in names and (packed is None or side not in packed.hides)]
    if missing:
        raise CannotCheck(
            f"I can't tell which parameter is the {', which the '.join(missing)}; the parameters are "
            f"({', '.join(p.name for p in parameters(target))}). Name them query, key and value (or q, k, v). If they "
            "come in one tensor, name it qkv or say its layout: --layout bl3hd is (batch, length, 3, heads, size). If "
            f"it isn't attention, say what it is with --kind ({', '.join(KINDS)})."
        )
    if "mask" not in names:
        fourth = [
            p for p in parameters(target) if p.name not in names.values() and p.name not in options.settings
        ]
        if fourth and fourth[0].default in (None, inspect.Parameter.empty) and len(fourth) == 1:
            names["mask"] = fourth[0].name
    return Function(
        target,
        names,
        order=packed.order if packed else "",
        positional=positional(target),
        constants=constants(target, names, options),
    )


class Packed(NamedTuple):
    """The parameter that takes several tensors in one, what they are, and the roles that it leaves empty."""

    name: str
    order: str
    hides: tuple[str, ...]


def packed_role(target: Callable[..., Any], names: Mapping[str, str], options: Options) -> Packed | None:
    """The packed parameter, told by its name, or by the layout that the user gave."""
    if "qkv" in names:
        return Packed(names["qkv"], "qkv", ("qkv", "kv", *SIDES))
    if "kv" in names and "query" in names and "key" not in names:
        return Packed(names["kv"], "kv", ("kv", "key", "value"))
    if options.layout and layouts.is_packed(options.layout):
        free = [p.name for p in parameters(target) if names.get("query") in (None, p.name)]
        if "3" in options.layout:
            return Packed(free[0], "qkv", SIDES)
        second = names.get("key") or parameters(target)[1].name
        return Packed(second, "kv", ("key", "value"))
    return None


def forward_function(module: torch.nn.Module) -> Callable[..., Any]:
    """A module without parameters, as the function it is."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    forward.__signature__ = inspect.signature(module.forward)
    forward.__doc__ = f"{inspect.getdoc(type(module)) or ''}\n{inspect.getdoc(module.forward) or ''}"
    forward.__name__ = type(module).__name__
    return forward


def positional(target: Callable[..., Any]) -> tuple[str, ...]:
    """Parameters that can't be given by keyword."""
    return tuple(p.name for p in parameters(target) if p.kind is p.POSITIONAL_ONLY)


def constants(target: Callable[..., Any], names: Mapping[str, str], options: Options) -> dict[str, Any]:
    """Values for the parameters that stay the same in every call."""
    fixed: dict[str, Any] = {}
    quiet = {"dropout": 0.0, "training": False, "want_weights": True, "grouped": True}
    defaults = {p.name: p.default for p in parameters(target)}
    for role, value in quiet.items():
        if role in names and (role != "dropout" or defaults[names[role]] is not None):
            fixed[names[role]] = value
    if names.get("training") == "deterministic":
        fixed["deterministic"] = True
    if "module" in names:
        fixed[names["module"]] = Stub()
        if "scale" in names:
            fixed[names["scale"]] = None
    for parameter in parameters(target):
        name = parameter.name
        if name in fixed or parameter.default is not parameter.empty:
            continue
        if name in [names.get(role) for role in ("mask", "padding", "lengths", "bias", "scale")]:
            fixed[name] = None
        elif name not in names.values() and name not in options.settings:
            raise CannotCheck(
                f"I don't know what to pass for the required parameter {name!r}. Say it with --set {name}=VALUE, "
                f"or in Python with settings={{{name!r}: ...}}."
            )
    return fixed | dict(options.settings)


def arrangements(function: Function, claims: Claims, options: Options) -> list[Function]:
    """The target with each layout that it may take, most likely first."""
    if "packed" in function.names:
        return packed_arrangements(function, options)
    if options.layout:
        return [replace(function, layout=options.layout)]
    order: list[str] = ["ble", "bhld", "blhd"] if "heads" in function.names else [*layouts.SPLIT]
    if claims.layout and claims.layout.what in order:
        order.remove(claims.layout.what)
        order.insert(0, claims.layout.what)
    return [replace(function, layout=layout) for layout in order]


def packed_arrangements(function: Function, options: Options) -> list[Function]:
    """The target with each layout of its packed tensor."""
    if options.layout:
        tried = [options.layout]
    elif "heads" in function.names:
        tried = sorted(layouts.PACKED, key=lambda layout: "-" not in layout)
    else:
        tried = [p for p in (*layouts.PACKED, *layouts.PACKED_ONE_HEAD) if "-" not in p or "h" not in p]
    parts = str(len(function.order))
    return [
        replace(function, packing=packing.replace("3", parts), layout=layouts.of_parts(packing))
        for packing in tried
    ]


def orders(function: Function) -> list[Function]:
    """A function of a packed tensor, with each order in which that may hold its parts; others as they are."""
    found = ["".join(letters) for letters in itertools.permutations(function.order)]
    return [replace(function, order=letters) for letters in found] if function.packing else [function]


def accepted(function: Function, claims: Claims, options: Options) -> dict[Shape, list[Function]]:
    """For each suite of sizes, the ways to call the target that gave an output of a sensible shape.

    Raises:
        CannotCheck: Nothing worked; the first error is quoted.
    """
    found, first_error = with_mask_if_needed(function, lambda each: ways(each, claims, options))
    if not found:
        raise CannotCheck(
            "every way of calling it that I know failed. The first one, with query, key and value of shape "
            f"(batch, heads, length, size), gave:\n{first_error}\n"
            "If it wants another layout, say so with --layout (bhld, blhd, bld, ld, ble, or bl3hd and the like for a "
            "packed tensor); if it isn't a function of query, key and value, say what it is with --kind."
        )
    return found


def ways(function: Function, claims: Claims, options: Options) -> tuple[dict[Shape, list[Function]], str]:
    """For each suite of sizes, the ways that worked, and the first error."""
    found: dict[Shape, list[Function]] = {}
    first_error = ""
    for shape in SUITES:
        for arranged in arrangements(function, claims, options):
            size = arranged.fit(shape)
            if not arranged.packs(size):
                continue
            for array in ("torch", "numpy"):
                trial = replace(arranged, array=array)
                try:
                    trial.observe(plain(size))
                except CallFailed as error:
                    first_error = first_error or str(error)
                    continue
                found.setdefault(shape, []).extend(orders(trial))
                break
    return found, first_error
