"""Works out how to call a module, and how its parameters are to be read."""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from heedful.checking.calling import CallFailed, with_mask_if_needed
from heedful.checking.cases import EQUAL_LENGTHS, SUITES, Shape
from heedful.checking.functions import constants
from heedful.checking.module_calls import Module, View
from heedful.checking.options import Options
from heedful.checking.problems import CannotCheck
from heedful.checking.projections import Found, is_usual, orders
from heedful.checking.readings import Reading, always_on
from heedful.checking.roles import NAMES, assign, parameters
from heedful.checking.softcaps import told_by_attributes
from heedful.checking.stages import Rotation
from heedful.checking.targets import forward_of

ROLES = (
    "query", "key", "value", "input", "memory", "mask", "padding", "lengths", "bias", "causal", "want_weights",
    "average", "training", "cache", "use_cache", "start", "dropout",
)  # fmt: skip


BASES = (10000.0, 500000.0)  # of rotations that a block may apply by itself


def heads_of(module: nn.Module, found: Found, options: Options) -> tuple[int, int]:
    """How many query heads and key heads a module has: told, or read from its attributes and shapes.

    Raises:
        CannotCheck: It doesn't say.
    """
    holders = [module, getattr(module, "config", None), *module.children()]
    heads = options.heads or attribute(holders, "heads") or separate_heads(module)
    if heads is None:
        raise CannotCheck(
            "I can't find out how many heads it has: there is no attribute like num_heads, n_heads, n_head or heads. "
            "Say it with --heads NUMBER."
        )
    kv_heads = attribute(holders, "kv_heads") or heads
    if not found.fused and "query" in found.matrices and "key" in found.matrices:
        ratio = found.matrices["query"].weight.shape[0] / found.matrices["key"].weight.shape[0]
        kv_heads = round(heads / ratio) if ratio >= 1 else heads
    if found.fused:
        kv_heads = fused_kv_heads(found, heads) or kv_heads
    return heads, max(1, kv_heads)


def fused_kv_heads(found: Found, heads: int) -> int | None:
    """How many key heads a fused matrix has room for, when another matrix tells the size of a head."""
    rows = {role: linear.weight.shape[0] for role, linear in found.matrices.items()}
    if "pair" in rows and "query" in rows:
        size, left = rows["query"] // heads, rows["pair"]
    elif "fused" in rows and "output" in rows:
        size = found.matrices["output"].weight.shape[1] // heads
        left = rows["fused"] - heads * size
    else:
        return None
    kv_heads = left // (2 * size) if size and left % (2 * size) == 0 else 0
    return kv_heads if kv_heads > 0 and heads % kv_heads == 0 else None


def readable(module: Module) -> None:
    """Make sure that the matrices can be taken apart into query, key and value.

    Raises:
        CannotCheck: They can't, by any order I know.
    """
    found, view = module.view.found, module.view
    if any(view.matrices(order) is not None for order in orders(found)):
        return
    have = ", ".join(f"{role} {tuple(linear.weight.shape)}" for role, linear in found.matrices.items())
    raise CannotCheck(
        f"I can't tell which rows of its projections are query, key and value. With {view.heads} query heads and "
        f"{view.kv_heads} key heads, the matrices don't come apart: {have} (rows, features). Give them separate names "
        "(q_proj, k_proj, v_proj), say the heads with --heads NUMBER, or check the function inside that takes query, "
        "key and value."
    )


def attribute(holders: Sequence[object], role: str) -> int | None:
    """The first whole number among attributes whose names play this role."""
    for holder in holders:
        for name in NAMES[role].split():
            for spelling in (name, f"_{name}"):
                value = getattr(holder, spelling, None)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
    return None


def separate_heads(module: nn.Module) -> int | None:
    """One head when there is no trace of several; their number when they are a list of modules."""
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList) and "head" in name.lower():
            return len(child)
    names = " ".join(n for n, _ in module.named_parameters())
    return 1 if "head" not in names and not any("head" in n for n in vars(module)) else None


def module_of(module: nn.Module, found: Found, options: Options) -> Module:
    """The module with its parameters sorted out."""
    forward = forward_of(module)
    names = assign(forward, ROLES)
    if "query" not in names and "input" not in names:
        free = [p.name for p in parameters(forward) if p.default is p.empty]
        if not free:
            raise CannotCheck("its forward has no parameter that could be the input. Name it x or query.")
        names["input"] = free[0]
    if "query" in names and "key" not in names and "input" not in names:
        names["input"] = names.pop("query")
    memory = next((p for p in parameters(forward) if p.name == names.get("memory")), None)
    uses_memory = memory is not None and memory.default is memory.empty
    if not uses_memory and names.get("padding") == "context_mask":
        del names["padding"]
    second = [p.name for p in parameters(forward) if p.name in ("attn_mask", "attention_mask")]
    if names.get("mask") == "mask" and second and "padding" not in names:
        names |= {"padding": "mask", "mask": second[0]}
    heads, kv_heads = heads_of(module, found, options)
    sides = {side: name for side, name in names.items() if side not in ("input", "memory")}
    ignored = {"cache": None, "use_cache": False, "start": 0}
    fixed = constants(forward, {**sides, **{r: names[r] for r in ("input", "memory") if r in names}}, options)
    for role, value in ignored.items():
        if role in names and any(p.name == names[role] and p.default is p.empty for p in parameters(forward)):
            fixed[names[role]] = value
    widths = (found.width("query"), found.width("key"), found.width("value"))
    made = Module(
        module, names, View(found, heads, kv_heads), widths, constants=fixed, uses_memory=uses_memory
    )
    readable(made)
    return made


def accepted(module: Module, options: Options) -> dict[Shape, list[Module]]:
    """For each suite of sizes, the layouts in which the module gave an output of a sensible shape."""
    found, first = with_mask_if_needed(module, lambda each: ways(each, options))
    if not found:
        raise CannotCheck(
            f"every way of calling it that I know failed. The first one, with inputs of shape (batch, length, "
            f"{module.widths[0]}), gave:\n{first}\nValues for other parameters can be given with --set NAME=VALUE."
        )
    return found


def ways(module: Module, options: Options) -> tuple[dict[Shape, list[Module]], str]:
    """For each suite of sizes, the layouts that worked, and the first error."""
    suites = [EQUAL_LENGTHS] if module.same else SUITES
    layouts = [options.layout] if options.layout else ["ble", "lbe"]
    found: dict[Shape, list[Module]] = {}
    first = ""
    for shape in suites:
        for layout in layouts:
            trial = replace(module, layout=layout)
            try:
                trial.observe(trial.base(shape))
            except CallFailed as error:
                first = first or str(error)
                continue
            found.setdefault(shape, []).append(trial)
    return found, first


def always_on_in(module: Module) -> list[Reading]:
    """What a module may do by itself: orders of a fused matrix, causality, rotations."""
    found = module.view.found
    fitting = [o for o in orders(found) if module.view.matrices(o) is not None]
    plain = always_on(told_by_attributes(module.module))
    basic = plain if found.norm is None else [replace(r, normed=n) for n in (True, False) for r in plain]
    usual = [
        replace(r, order=o, most=r.most if is_usual(o) else 0)
        for o in fitting
        for r in basic
        if r.most == 2 or is_usual(o)
    ]
    turned = [
        replace(r, rotary=Rotation(layout, base), most=1 if base == BASES[0] else 0)
        for r in usual
        if r.most == 2
        for layout in ("half", "interleaved")
        for base in BASES
    ]
    return [*usual, *turned]


def projection_words(found: Found, reading: Reading) -> list[str]:
    """The conventions that the parameters show."""
    order = reading.order
    words = ["normalizes its input first"] if reading.normed else []
    if found.fused and order:
        letters, axes = order.split()
        names = {"r": "role", "h": "head", "d": "size"}
        words.append(
            f"fused projection in the order {', '.join(letters)} ({', '.join(names[a] for a in axes)})"
        )
    if order == "transposed":
        words.append("weights used as x @ W")
    if "output" not in found.matrices:
        words.append("no output projection")
    return words
