"""Layouts: the order of the axes in which a target takes query, key and value, apart or in one tensor.

A layout is spelled with b, h, l, d for batch, heads, length and size of a head, and e for heads * size. In the layout
of a packed tensor, 3 (or 2, for key and value) is the axis of its parts, and axes after a dash are flattened into one:
`bl3hd` is (batch, length, 3, heads, size), `bl-3hd` is (batch, length, 3 * heads * size).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

WORDS = {
    "bhld": "(batch, heads, length, size)",
    "blhd": "(batch, length, heads, size)",
    "bld": "(batch, length, size)",
    "ld": "(length, size)",
    "ble": "(batch, length, features)",
    "lbe": "(length, batch, features)",
}
SPLIT = ("bhld", "blhd", "bld", "ld")
PACKED = ("bl3hd", "3bhld", "b3hld", "blh3d", "3blhd", "lb3hd", "bl-3hd", "bl-h3d", "lb-3hd")
PACKED_ONE_HEAD = ("bl3d", "3bld", "bl-3d", "l3d", "3ld", "l-3d")
AXES = {"b": "batch", "h": "heads", "l": "length", "d": "size", "2": "2", "3": "3"}


def is_packed(layout: str) -> bool:
    """Whether this is the layout of a packed tensor: each axis once, at most one dash."""
    axes = layout.replace("-", "", 1)
    needed = sorted(axes) in (sorted(rest + parts) for rest in ("bhld", "bld", "ld") for parts in "23")
    return needed and not layout.endswith("-") and not layout.startswith("-")


def known(layout: str) -> bool:
    """Whether this is a layout at all."""
    return layout in WORDS or is_packed(layout)


def words(layout: str) -> str:
    """The axes in words."""
    if layout in WORDS:
        return WORDS[layout]
    whole, _, flat = layout.partition("-")
    parts = [AXES[a] for a in whole] + ([" * ".join(AXES[a] for a in flat)] if flat else [])
    return f"({', '.join(parts)})"


def of_parts(packing: str) -> str:
    """The layout of one part of a packed tensor, and of the output that goes with it."""
    axes = "".join(a for a in packing.partition("-")[0] if a in "bhld")
    if "-" in packing and "h" in packing:
        return "ble"
    if "h" in packing:
        return "blhd" if axes.index("l") < axes.index("h") else "bhld"
    return "bld" if "b" in packing else "ld"


def into(x: "Tensor", layout: str) -> "Tensor":
    """(B, H, L, D) in the layout that the target wants."""
    if layout == "blhd":
        return x.transpose(1, 2)
    if layout == "bld":
        return x[:, 0]
    if layout == "ld":
        return x[0, 0]
    return x.transpose(1, 2).flatten(2) if layout == "ble" else x


def out_of(x: "Tensor", layout: str) -> "Tensor":
    """A tensor with a head's size in its last axis as (B, H, L, D)."""
    if layout == "blhd":
        return x.transpose(1, 2)
    if layout == "bld":
        return x[:, None]
    return x[None, None] if layout == "ld" else x


def pack(parts: "Sequence[Tensor]", layout: str) -> "Tensor":
    """Two or three tensors (B, H, L, D) of one shape in one."""
    import torch  # the command line reads the names of layouts, and must answer --help at once

    whole, _, flat = layout.partition("-")
    stacked = torch.stack(list(parts))
    axes = f"{len(parts)}bhld"
    for missing in sorted(set(axes) - set(layout)):
        stacked = stacked.select(axes.index(missing), 0)
        axes = axes.replace(missing, "")
    packed = stacked.permute(*(axes.index(a) for a in whole + flat))
    return packed.flatten(len(whole)) if flat else packed
