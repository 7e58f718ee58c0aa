"""Works out how to call a function of (query, key, value, ...): which parameter is what, and in which layout."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from heedful.checking.calling import CallFailed
from heedful.checking.cases import SUITES, Shape, plain
from heedful.checking.claims import Claims
from heedful.checking.function_calls import Function
from heedful.checking.problems import CannotCheck
from heedful.checking.roles import assign, parameters

ROLES = (
    "query", "key", "value", "mask", "padding", "bias", "causal", "scale", "dropout", "heads", "kv_heads", "grouped",
    "module", "training", "want_weights", "average",
)  # fmt: skip
SIDES = ("query", "key", "value")


@dataclass(frozen=True)
class Options:
    """What a user may say about a target when it can't be worked out, or to save the trying.

    Attributes:
        kind: What the target is: "attention", "positions", "rotary", "mask" or "cache".
        layout: "bhld", "blhd", "bld", "ld" or "ble".
        heads: Number of heads of a module.
        settings: Values for parameters by name.
    """

    kind: str | None = None
    layout: str | None = None
    heads: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


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
    missing = [side for side in SIDES if side not in names]
    if missing:
        raise CannotCheck(
            f"I can't tell which parameters are {' and '.join(missing)}: the parameters are "
            f"({', '.join(p.name for p in parameters(target))}). Name them query, key and value (or q, k, v), "
            "or wrap the target in a function that does."
        )
    if "mask" not in names:
        fourth = [
            p for p in parameters(target) if p.name not in names.values() and p.name not in options.settings
        ]
        if fourth and fourth[0].default in (None, inspect.Parameter.empty) and len(fourth) == 1:
            names["mask"] = fourth[0].name
    return Function(target, names, positional=positional(target), constants=constants(target, names, options))


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
    for role, value in quiet.items():
        if role in names:
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
        if name in (names.get("mask"), names.get("padding"), names.get("bias"), names.get("scale")):
            fixed[name] = None
        elif name not in names.values() and name not in options.settings:
            raise CannotCheck(
                f"I don't know what to pass for the required parameter {name!r}. Say it with --set {name}=VALUE, "
                f"or in Python with settings={{{name!r}: ...}}."
            )
    return fixed | dict(options.settings)


def layouts(function: Function, claims: Claims, options: Options) -> list[str]:
    """Layouts to try, most likely first."""
    if options.layout:
        return [options.layout]
    order = ["ble", "bhld", "blhd"] if "heads" in function.names else ["bhld", "blhd", "bld", "ld"]
    if claims.layout and claims.layout.what in order:
        order.remove(claims.layout.what)
        order.insert(0, claims.layout.what)
    return order


def fitted(shape: Shape, layout: str) -> Shape:
    """The sizes that a layout leaves: no head axis means one head."""
    if layout == "bld":
        return replace(shape, heads=1, kv_heads=1)
    if layout == "ld":
        return replace(shape, batch=1, heads=1, kv_heads=1)
    return shape


def accepted(function: Function, claims: Claims, options: Options) -> dict[Shape, list[Function]]:
    """For each suite of sizes, the ways to call the target that gave an output of a sensible shape.

    Raises:
        CannotCheck: Nothing worked; the first error is quoted.
    """
    found: dict[Shape, list[Function]] = {}
    first_error = ""
    for shape in SUITES:
        for layout in layouts(function, claims, options):
            for array in ("torch", "numpy"):
                trial = replace(function, layout=layout, array=array)
                try:
                    trial.observe(plain(fitted(shape, layout)))
                except CallFailed as error:
                    first_error = first_error or str(error)
                    continue
                found.setdefault(shape, []).append(trial)
                break
    if not found:
        raise CannotCheck(
            "every way of calling it that I know failed. The first one, with query, key and value of shape "
            f"(batch, heads, length, size), gave:\n{first_error}\n"
            "If it wants another layout, say so with --layout (bhld, blhd, bld, ld or ble); if it isn't a function "
            "of query, key and value, say what it is with --kind."
        )
    return found
