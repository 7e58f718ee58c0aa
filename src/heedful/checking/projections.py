"""Finds the projections of a module by the names and shapes of its parameters."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from heedful.checking.stages import Linear

LAST = r"(?:^|[._/])(?:{})(?:[._/](?:weight|0\.weight|kernel))?$"
PATTERNS = {
    "fused": "qkv|kqv|c_attn|in_proj|in_proj_weight|w_?qkv|to_?qkv|query_key_value|qkv_?proj|qkv_?layer|"
    "attn_?proj|proj_?qkv|qkv_?linear|linear_?qkv",
    "pair": "kv|kv_?proj|to_?kv|w_?kv|key_value|kv_?linear",
    "query": "w_?q|wq|q|query|queries|q_?proj|to_?q|q_?linear|linear_?q|q_?lin|fc_?q|proj_?q|w_?quer(?:y|ies)|"
    "query_?proj\\w*|q_?proj_?weight|query_?layer|query_?dense|q_?net|queries_?linear",
    "key": "w_?k|wk|k|key|keys|k_?proj|to_?k|k_?linear|linear_?k|k_?lin|fc_?k|proj_?k|w_?keys?|key_?proj\\w*|"
    "k_?proj_?weight|key_?layer|key_?dense|k_?net|keys_?linear",
    "value": "w_?v|wv|v|value|values|v_?proj|to_?v|v_?linear|linear_?v|v_?lin|fc_?v|proj_?v|w_?values?|"
    "value_?proj\\w*|v_?proj_?weight|value_?layer|value_?dense|v_?net|values_?linear",
    "output": "w_?o|wo|o|out|out_?proj|o_?proj|to_?out|c_?proj|proj|dense|output|output\\.dense|fc|fc_?out|"
    "linear_?out|out_?linear|out_?lin|unify_?heads|final|final_?linear|w_?out|output_?proj\\w*|o_?linear|"
    "output_?linear|proj_?out|proj_?o|output_?dense|fc_?o|linear_?o|projection|output_?layer",
}  # fmt: skip
ROLE = {role: re.compile(LAST.format(p), re.IGNORECASE) for role, p in PATTERNS.items()}
SIDES = ("query", "key", "value")


@dataclass(frozen=True, eq=False)
class Found:
    """The projections of a module: role to (weight, bias), and the parameters that fit no role.

    With `bare`, square weights are parameters of their own, and may be used as `x @ W` or as `x @ W.T`. `norm` may be
    applied to the input first.
    """

    matrices: dict[str, Linear]
    unknown: list[str] = field(default_factory=list)
    bare: bool = False
    norm: nn.Module | None = None

    @property
    def fused(self) -> bool:
        """Whether one matrix holds several projections."""
        return "fused" in self.matrices or "pair" in self.matrices

    def width(self, side: str) -> int:
        """How many features this side's input has."""
        for role in (side, "pair" if side != "query" else "fused", "fused"):
            if role in self.matrices:
                return self.matrices[role].weight.shape[1]
        return 0


def natural(name: str) -> list[object]:
    """Sort key that puts heads.10 after heads.9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def linears(module: nn.Module) -> Iterator[tuple[str, Linear, list[str], bool]]:
    """Every weight of a projection, as (out, in) with its bias.

    Yields its name, the weight and bias, the parameters they stand for, and whether it is a bare parameter, whose
    orientation only the code knows.
    """
    parameters = dict(module.named_parameters())
    owners = dict(module.named_modules())
    for name in sorted(parameters, key=natural):
        weight = parameters[name].detach()
        kernel = name.endswith("kernel")
        if weight.ndim == 3 and kernel:  # keras: (in, heads, size), and (heads, size, out) on the way out
            weight = weight.flatten(0, 1) if ROLE["output"].search(name) else weight.flatten(1)
        if weight.ndim != 2:
            continue
        bias_name = re.sub(r"weight$|kernel$", "bias", name)
        bias = parameters.get(bias_name) if bias_name != name else None
        owner = owners.get(name.rpartition(".")[0], module)
        if type(owner).__name__ == "Conv1D" or kernel:
            weight = weight.mT
        bare = name.rpartition(".")[2] != "weight" and not kernel
        if bare and weight.shape[1] in (2 * weight.shape[0], 3 * weight.shape[0]):
            weight = weight.mT
        used = [name] if bias is None else [name, bias_name]
        yield name, Linear(weight, None if bias is None else bias.detach().flatten()), used, bare


def find(module: nn.Module) -> Found:
    """Sort the module's parameters into projections."""
    groups: dict[str, list[Linear]] = {}
    leftover: list[tuple[str, Linear, list[str]]] = []
    used: set[str] = set()
    any_bare = False
    for name, linear, names, bare in linears(module):
        role = next((r for r, pattern in ROLE.items() if pattern.search(name)), None)
        if role is None:
            leftover.append((name, linear, names))
            continue
        groups.setdefault(role, []).append(linear)
        used.update(names)
        any_bare |= bare and linear.weight.shape[0] == linear.weight.shape[1]
    if not groups.keys() & {"query", "fused"} and len(leftover) in (3, 4):
        for role, (_, linear, names) in zip((*SIDES, "output"), leftover, strict=False):
            groups[role] = [linear]
            used.update(names)
    matrices = {role: stack(parts) for role, parts in groups.items()}
    loose = dict(module.named_parameters()).get("in_proj_bias")
    if loose is not None and "query" in matrices and "in_proj_bias" not in used:
        parts = loose.detach().chunk(3)
        matrices |= {
            side: Linear(matrices[side].weight, part) for side, part in zip(SIDES, parts, strict=True)
        }
        used.add("in_proj_bias")
    norms = [(n, m) for n, m in module.named_children() if isinstance(m, (nn.LayerNorm, nn.RMSNorm))]
    if len(norms) == 1:
        used.update(f"{norms[0][0]}.{n}" for n, _ in norms[0][1].named_parameters())
    unknown = [n for n, p in module.named_parameters() if n not in used and p.ndim > 0]
    return Found(matrices, unknown, any_bare, norms[0][1] if len(norms) == 1 else None)


def stack(parts: list[Linear]) -> Linear:
    """One matrix from those of several single heads."""
    biases = [p.bias for p in parts if p.bias is not None]
    return Linear(
        torch.cat([p.weight for p in parts]), torch.cat(biases) if len(biases) == len(parts) else None
    )


AXES = ("rhd", "hrd", "hdr", "rdh", "dhr", "drh")
USUAL = ("qkv rhd", "qkv hrd")


def orders(found: Found) -> list[str]:
    """Ways in which a fused matrix may hold its parts: letters, and the order of role, head and size."""
    if not found.fused:
        return ["", "transposed"] if found.bare else [""]
    letters = ["".join(p) for p in itertools.permutations("qkv" if "fused" in found.matrices else "kv")]
    return [f"{word} {axes}" for axes in AXES for word in letters]


def is_usual(order: str) -> bool:
    """Whether many people do it this way."""
    return order in ("", "transposed", "kv rhd", "kv hrd", *USUAL)


def projections(found: Found, order: str, heads: int, kv_heads: int) -> dict[str, Linear] | None:
    """Query, key, value and output matrices when fused ones are read in this order; None when sizes don't fit."""
    sides = {r: found.matrices[r] for r in (*SIDES, "output") if r in found.matrices}
    if found.fused != (" " in order):
        return None
    if order == "transposed":
        sides = {r: Linear(p.weight.mT, p.bias) for r, p in sides.items()}
    if found.fused:
        letters, axes = order.split()
        fused = found.matrices["fused" if "fused" in found.matrices else "pair"]
        counts = [{"q": heads}.get(letter, kv_heads) for letter in letters]
        parts = cut(fused, counts, axes)
        if parts is None:
            return None
        sides |= {
            {"q": "query", "k": "key", "v": "value"}[letter]: part
            for letter, part in zip(letters, parts, strict=True)
        }
    return sides if sides.keys() >= set(SIDES) else None


def cut(fused: Linear, counts: list[int], axes: str) -> list[Linear] | None:
    """Take a fused matrix apart into one per role; `counts` are the heads of each."""
    weight = fused.weight if fused.bias is None else torch.cat([fused.weight, fused.bias[:, None]], 1)
    rows = weight.shape[0]
    if rows % sum(counts):
        return None
    size = rows // sum(counts)
    if len(set(counts)) > 1:
        if axes not in ("rhd", "hrd") or max(counts) % min(counts):
            return None
        groups = 1 if axes == "rhd" else min(counts)
        each = weight.unflatten(0, (groups, -1)).split([n // groups * size for n in counts], 1)
        pieces = [piece.flatten(0, 1) for piece in each]
    else:
        lengths = {"r": len(counts), "h": counts[0], "d": size}
        cube = weight.reshape(*(lengths[a] for a in axes), -1)
        cube = cube.permute(*(axes.index(a) for a in "rhd"), 3)
        pieces = [cube[i].reshape(counts[0] * size, -1) for i in range(len(counts))]
    if fused.bias is None:
        return [Linear(p, None) for p in pieces]
    return [Linear(p[:, :-1], p[:, -1]) for p in pieces]


def disturb(module: nn.Module) -> None:
    """Move every parameter a little, so that zero biases and tied starts hide nothing."""
    random = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.is_floating_point():
                continue
            noise = torch.randn(parameter.shape, generator=random).to(parameter.dtype)
            size = parameter.shape[-1] ** -0.5 if parameter.ndim >= 2 else 0.3
            parameter.add_(noise * size)
