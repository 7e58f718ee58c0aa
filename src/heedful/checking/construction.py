"""Builds a module from its class: works out what its constructor wants."""

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from torch import nn

from heedful.checking.calling import quiet
from heedful.checking.options import Options
from heedful.checking.problems import CannotCheck
from heedful.checking.projections import disturb
from heedful.checking.roles import NAMES, parameters, role_of
from heedful.checking.targets import forward_of

ROLES = (
    "heads", "kv_heads", "width", "head_dim", "dropout", "use_bias", "bias", "length", "batch_first", "causal", "base",
    "config",
)  # fmt: skip
DROPOUT = 0.5
LONGEST = 256
SIZES = ((3, 3, 24), (4, 2, 32), (4, 4, 32), (4, 4, 64), (1, 1, 24))


def values(heads: int, kv_heads: int, width: int) -> dict[str, Any]:
    """A value for each role of a constructor's parameter."""
    return {
        "heads": heads, "kv_heads": kv_heads, "width": width, "head_dim": width // heads, "dropout": DROPOUT,
        "use_bias": True, "bias": True, "length": LONGEST, "batch_first": True, "causal": True, "base": 10000.0,
    }  # fmt: skip


def config(given: dict[str, Any]) -> SimpleNamespace:
    """A configuration object that answers to every name I know."""
    named = {name: value for role, value in given.items() for name in NAMES[role].split()}
    named |= {"bias": True, "dropout": DROPOUT, "attn_pdrop": DROPOUT, "resid_pdrop": 0.0, "vocab_size": 64}
    return SimpleNamespace(**named)


def arguments(
    target: type, sizes: tuple[int, int, int], settings: dict[str, Any], longest: int
) -> dict[str, Any]:
    """Keyword arguments for the constructor.

    Raises:
        CannotCheck: A required parameter has a name that says nothing.
    """
    known = values(*sizes) | {"length": longest}
    given: dict[str, Any] = {}
    for parameter in parameters(target):
        name = parameter.name
        role = role_of(name, ROLES)
        if name in settings:
            given[name] = settings[name]
        elif role == "config":
            given[name] = config(known)
        elif left_alone(parameter, role):
            continue
        elif role is not None:
            given[name] = known[role]
        else:
            raise CannotCheck(
                f"I don't know what to pass for {name!r} of {target.__name__}(...). Say it with --set {name}=VALUE, "
                "or check an instance instead of the class."
            )
    return given


def left_alone(parameter: inspect.Parameter, role: str | None) -> bool:
    """Whether a parameter keeps its default."""
    if role == "head_dim":
        return parameter.default is None
    return parameter.default is not parameter.empty and role in (None, "base", "causal")


def build(
    target: type, options: Options, longest: int = LONGEST, sizes: Sequence[tuple[int, int, int]] = SIZES
) -> nn.Module:
    """An instance of a module class, for sequences up to this length.

    Raises:
        CannotCheck: Its constructor raised for every combination of sizes that I tried.
    """
    return construct(target, options, longest, sizes)[0]


def construct(
    target: type, options: Options, longest: int = LONGEST, sizes: Sequence[tuple[int, int, int]] = SIZES
) -> tuple[nn.Module, dict[str, Any]]:
    """An instance of a module class, and the arguments that its constructor took.

    Raises:
        CannotCheck: It raised for every combination of sizes that I tried.
    """
    first, given = "", {}
    if options.heads is not None:
        sizes = ((options.heads, options.heads, 8 * options.heads),)
    elif any(role_of(p.name, ["kv_heads"]) for p in parameters(target)):
        sizes = sizes[1:] or sizes
    for size in sizes:
        given = arguments(target, size, dict(options.settings), longest)
        try:
            with quiet():
                return target(**given), given
        except SystemExit as error:
            raise CannotCheck("its constructor ends the program (sys.exit).") from error
        except Exception as error:
            first = first or f"{type(error).__name__}: {error}"
    raise CannotCheck(
        f"{target.__name__} could not be built. With {given}, its constructor raised\n{first}\n"
        "Give other values with --set NAME=VALUE, or check an instance: FILE.py:NAME of an object works, too."
    )


def left_for_call(target: type, options: Options) -> Options:
    """The options without the settings that only the constructor takes."""
    called = {p.name for p in parameters(forward_of(target))}
    built = {p.name for p in parameters(target)} - called
    return replace(options, settings={n: v for n, v in options.settings.items() if n not in built})


def built_as(target: type, given: Mapping[str, Any]) -> str:
    """How the instance came about, in words."""
    shown = ((n, "..." if isinstance(v, SimpleNamespace) else repr(v)) for n, v in given.items())
    return (
        f"It was built as {target.__name__}({', '.join(f'{n}={v}' for n, v in shown)}). --set NAME=VALUE reaches these "
        "arguments, too; or check an instance: FILE.py:NAME of an object works."
    )


def prepare(module: nn.Module) -> nn.Module:
    """A copy in float32 and eval mode, with every parameter moved a little; the original stays as it is."""
    try:
        module = copy.deepcopy(module)
    except Exception as error:
        raise CannotCheck(
            f"it can't be copied ({type(error).__name__}: {error}), and I won't change yours."
        ) from error
    module = module.float().eval()
    disturb(module)
    return module
