"""A call and what is asked of it, taken apart into what an operator accepts: tensors, integers, floats, and a text.

What a gradient needs is kept in the same way, so that autograd alone holds the tensors: it sees when one is changed in
place, and checkpoints and other hooks may store them as they like.

The text says how the parts fit together. It is JSON, so that an exported program can be saved and run elsewhere.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from .. import edits, masks, reductions
from .._call import Call, TensorBias
from .._checks import tensors_of
from .._rows import Rows
from ..masks import _algebra, _patterns
from ..positions.bias import Alibi, RelativeBias

CLASSES = (
    *(Call, Rows, TensorBias, Alibi),
    *(_patterns.Window, _patterns.Prefix, _patterns.Padding, _patterns.Documents),
    *(masks.Dense, _algebra.And, _algebra.Or, _algebra.Not),
    *(edits.Ablate, edits.Cut, edits.WithoutSink),
    *(
        reductions.ByKey,
        reductions.DistanceProfile,
        reductions.Entropy,
        reductions.Full,
        reductions.KeyColumns,
    ),
    *(reductions.LogSumExp, reductions.Mass, reductions.MaxLogit, reductions.MeanDistance, reductions.Pooled),
    *(reductions.QueryRows, reductions.Received, reductions.SinkShare, reductions.TopK),
    reductions.TransposedProduct,
)
FIELDS: dict[type, tuple[str, ...]] = {
    **{each: tuple(field.name for field in fields(each)) for each in CLASSES},
    RelativeBias: ("weight", "max_distance", "bidirectional"),
    reductions.TopKResult: reductions.TopKResult._fields,
}
NAMED = {each.__name__: each for each in FIELDS}


class Luggage:
    """The parts of some objects, in the order in which they are met.

    Attributes:
        others: Objects that only this process knows; None: they may not come along.
    """

    def __init__(self, others: list[Any] | None = None):
        self.tensors: list[Tensor] = []
        self.integers: list[int] = []
        self.floats: list[float] = []
        self.others = others

    def pack(self, x: Any) -> str:
        """Put the parts of `x` in, and return the text that tells how to put them together again."""
        # Slices come before None: Dynamo takes the lengths in a slice that is compared with None for constants.
        if isinstance(x, bool):
            return "true" if x else "false"
        if isinstance(x, str):
            return f'"{x}"'
        if isinstance(x, Tensor):
            self.tensors.append(x)
            return '["tensor"]'
        if isinstance(x, int | torch.SymInt):
            self.integers.append(x)  # pyright: ignore[reportArgumentType]
            return '["int"]'
        if isinstance(x, float | torch.SymFloat):
            self.floats.append(x)  # pyright: ignore[reportArgumentType]
            return '["float"]'
        if isinstance(x, slice):
            return self._all("slice", (x.start, x.stop, x.step))
        if x is None:
            return "null"
        if isinstance(x, torch.device):
            return f'["device", "{x}"]'
        if isinstance(x, torch.dtype):
            return f'["dtype", "{str(x).removeprefix("torch.")}"]'
        if type(x) is tuple or type(x) is list:
            return self._all(type(x).__name__, x)
        if type(x) in FIELDS:
            return self._all(type(x).__name__, [getattr(x, name) for name in FIELDS[type(x)]])
        if self.others is None:
            raise NotImplementedError(
                f"{type(x).__name__} cannot go through torch.compile, torch.export or the meta device: masks, biases, "
                "edits and reductions there must be heedful's own. Call attention with it in a function of its own, "
                "under @torch.compiler.disable."
            )
        self.others.append(x)
        return '["other"]'

    def _all(self, name: str, parts: Any) -> str:
        return "[" + ", ".join([f'"{name}"', *[self.pack(part) for part in parts]]) + "]"


class Unpacked:
    """Puts objects together again, from the text and the parts."""

    def __init__(self, tensors: Any, integers: Any, floats: Any, others: Any = ()):
        parts = {"tensor": tensors, "int": integers, "float": floats, "other": others}
        self.parts = {name: iter(values) for name, values in parts.items()}

    def unpack(self, text: str) -> Any:
        """The objects that the text describes."""
        return self._build(_parsed(text))

    def _build(self, node: Any) -> Any:
        if not isinstance(node, list):
            return node
        name, *given = node
        if name in self.parts:
            return next(self.parts[name])
        made = [self._build(each) for each in given]
        if name in ("tuple", "list"):
            return tuple(made) if name == "tuple" else made
        if name in ("slice", "device", "dtype"):
            return {"slice": slice, "device": torch.device, "dtype": partial(getattr, torch)}[name](*made)
        kind = NAMED[name]
        if issubclass(kind, tuple):
            return kind(*made)
        built = object.__new__(kind)
        if isinstance(built, nn.Module):
            nn.Module.__init__(built)
        for field, value in zip(FIELDS[kind], made, strict=True):
            object.__setattr__(built, field, value)
        return built


@dataclass(frozen=True, eq=False)
class Parcel:
    """Objects taken apart, without their tensors.

    Attributes:
        others: Objects that only this process knows; they keep their tensors.
    """

    text: str
    integers: list[int]
    floats: list[float]
    others: list[Any]

    @property
    def closed_over(self) -> tuple[Tensor, ...]:
        """The tensors that `others` keep, each once."""
        kept = (x for other in self.others for x in tensors_of(other))
        return tuple({id(x): x for x in kept}.values())

    def unpack(self, tensors: Sequence[Tensor]) -> Any:
        """The objects again, with these tensors."""
        return Unpacked(tensors, self.integers, self.floats, self.others).unpack(self.text)

    def reopen(self, saved: Sequence[Tensor]) -> tuple[Any, tuple[Tensor, ...]]:
        """The objects again, with the tensors that autograd kept, and all their tensors in the order of `take_apart`.

        Each is a view of its own, which tells apart a tensor that is given twice.
        """
        closed_over = self.closed_over
        with torch.enable_grad():
            own = [x.view_as(x) for x in saved[: len(saved) - len(closed_over)]]
        return self.unpack(own), (*own, *closed_over)


def take_apart(x: Any) -> tuple[Parcel, list[Tensor]]:
    """The parcel, and all tensors that the objects are made of."""
    luggage = Luggage(others=[])
    text = luggage.pack(x)
    parcel = Parcel(text, luggage.integers, luggage.floats, luggage.others or [])
    return parcel, [*luggage.tensors, *parcel.closed_over]


@cache
def _parsed(text: str) -> Any:
    return json.loads(text)
