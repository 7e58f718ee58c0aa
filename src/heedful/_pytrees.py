"""Weights and masks as pytrees: their tensors are leaves for `tree_map`, `torch.export` and all that walks results."""

from typing import Any, NamedTuple

import torch
from torch.utils._pytree import SequenceKey, _register_namedtuple, register_pytree_node

from ._unchanged import changes
from ._weights import Weights
from .backends._compiled import Later
from .backends._travel import Luggage, Unpacked
from .masks import Dense
from .masks._algebra import And, Not, Or
from .masks._patterns import Documents, Padding, Prefix, Window
from .reductions import TopKResult

MASKS = (Window, Prefix, Padding, Documents, Dense, And, Or, Not)


class Context(NamedTuple):
    """What is not a leaf. A length that is not known yet, while a program is exported, is a leaf and None here."""

    text: str
    integers: tuple[int | None, ...]
    floats: tuple[float, ...]
    others: tuple[Any, ...]


def flatten(x: Any) -> tuple[list[Any], Context]:
    """The leaves of a mask or of weights, and how they fit together."""
    luggage = Luggage(others=[])
    text = luggage.pack(_parts(x) if isinstance(x, Weights) else x)
    symbolic = [number for number in luggage.integers if isinstance(number, torch.SymInt)]
    integers = tuple(None if isinstance(number, torch.SymInt) else number for number in luggage.integers)
    context = Context(text, integers, tuple(luggage.floats), tuple(luggage.others or ()))
    return [*luggage.tensors, *symbolic], context


def unflatten(leaves: Any, context: Context) -> Any:
    """The mask or the weights again; leaves may be anything, and are not looked at."""
    leaves = list(leaves)
    count = len(leaves) - context.integers.count(None)
    symbolic = iter(leaves[count:])
    integers = [next(symbolic) if number is None else number for number in context.integers]
    made = Unpacked(leaves[:count], integers, context.floats, context.others).unpack(context.text)
    return _weights(*made) if isinstance(made, tuple) else made


def _parts(weights: Weights) -> tuple[Any, ...]:
    shapes = tuple(weights._batch_shape), tuple(weights._head_shape)
    changed = changes(weights._call, weights._versions)
    return weights._call, weights._backend.NAME, *shapes, tuple(weights._remembered), weights._grad, changed


def _weights(call: Any, backend: str, *others: Any) -> Weights:
    return Weights(call, Later(backend), *others)


def _with_keys(x: Any) -> tuple[list[tuple[SequenceKey, Any]], Context]:
    leaves, context = flatten(x)
    return [(SequenceKey(i), leaf) for i, leaf in enumerate(leaves)], context


def _dump(context: Context) -> list[Any]:
    if context.others:
        names = ", ".join(type(other).__name__ for other in context.others)
        raise TypeError(
            f"{names} cannot be saved with an exported program, which knows heedful's own parts only."
        )
    return [context.text, context.integers, context.floats]


def _load(dumped: list[Any]) -> Context:
    text, integers, floats = dumped
    return Context(text, tuple(integers), tuple(floats), ())


def register_namedtuple(kind: type) -> None:
    """Let exported programs that return it be saved."""
    _register_namedtuple(kind, serialized_type_name=f"heedful.{kind.__name__}")


register_namedtuple(TopKResult)
# An exported program is saved with the masks it was tried on, and loaded with torch's careful unpickler.
torch.serialization.add_safe_globals([*MASKS])
for _cls in (*MASKS, Weights):
    register_pytree_node(
        _cls,
        flatten,
        unflatten,
        serialized_type_name=f"heedful.{_cls.__name__}",
        to_dumpable_context=_dump,
        from_dumpable_context=_load,
        flatten_with_keys_fn=_with_keys,  # pyright: ignore[reportArgumentType]
    )
