"""What an index on `weights` asks for: whole heads, some rows, or single elements."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._checks import readable

NAMES = {-1: "keys", -2: "queries", -3: "heads"}


class Plan(NamedTuple):
    """One selection per dimension, and the index that finishes the job on the selected block.

    `choices` hold slices of step 1 and 1-D index tensors. `final` drops the dimensions of integer indices, puts in
    new ones, and cuts the keys.
    """

    choices: list[slice | Tensor]
    final: tuple[Any, ...]
    only_leading: bool


def _from_list(item: list[Any], device: torch.device) -> Tensor:
    return torch.as_tensor(item, dtype=None if item else torch.int64, device=device)


def parse(index: Any, shape: tuple[int, ...], device: torch.device) -> Plan | None:
    """The plan of an index on weights of this shape; None when only element-wise look-up can answer it."""
    items = list(index) if isinstance(index, tuple) else [index]
    items = [_from_list(item, device) if isinstance(item, list) else item for item in items]
    used = sum(_dims(item) for item in items)
    if used > len(shape):
        raise IndexError(
            f"too many indices for weights of shape {shape}: {used} for {len(shape)} dimensions."
        )
    gap = [slice(None)] * (len(shape) - used)
    places = [k for k, item in enumerate(items) if item is Ellipsis]
    if len(places) > 1:
        raise IndexError("an index can only have a single ellipsis ('...').")
    items = items[: places[0]] + gap + items[places[0] + 1 :] if places else items + gap

    choices: list[slice | Tensor] = []
    final: list[Any] = []
    advanced = 0
    for item in items:
        if isinstance(item, Tensor) and item.dtype == torch.uint8:
            raise IndexError(
                "a uint8 index could be a mask or positions. Write index.bool() or index.long()."
            )
        if isinstance(item, str | float):
            raise IndexError(f"weights take integers, slices and index tensors, got {item!r}.")
        if item is None:
            final.append(None)
            continue
        dim = len(choices)
        if isinstance(item, Tensor) and item.dim() == 0 and item.dtype != torch.bool:
            item = int(item)
        if isinstance(item, Tensor) and item.dim() == 1:
            advanced += 1
            choices.append(_positions(item, dim, shape))
            final.append(slice(None))
        elif isinstance(item, int) and not isinstance(item, bool):
            start = _position(item, dim, shape)
            choices.append(slice(start, start + 1))
            final.append(0)
        elif isinstance(item, slice):
            chosen = range(*item.indices(shape[dim]))
            if chosen.step == 1:
                choices.append(slice(chosen.start, max(chosen.start, chosen.stop)))
            else:
                choices.append(torch.tensor(list(chosen), dtype=torch.int64, device=device))
            final.append(slice(None))
        else:
            return None
    if advanced > 1:
        return None
    everything = [slice(0, size) for size in shape[-2:]]
    untouched = all(isinstance(choice, slice) for choice in choices[-2:]) and choices[-2:] == everything
    only_leading = untouched and final[-2:] == [slice(None)] * 2 and None not in final
    return Plan(choices, tuple(final), only_leading)


def coordinates(index: Any, shape: tuple[int, ...], device: torch.device) -> list[Tensor]:
    """For each dimension, the coordinate of every element that the index picks."""
    if torch.compiler.is_compiling() or device.type == "meta":
        raise NotImplementedError(
            "an index that picks single weights cannot be compiled, nor used on the meta device. "
            "Index whole rows, such as weights[..., i, :], and pick from them."
        )
    try:
        grids = []
        for dim, size in enumerate(shape):
            grid = torch.arange(size, device=device).view([-1 if d == dim else 1 for d in range(len(shape))])
            grids.append(grid.expand(shape)[index])
        return grids
    except IndexError as error:
        raise IndexError(f"{error} The weights have shape {shape}: (..., queries, keys).") from None


def flattened(choices: list[slice | Tensor], shape: tuple[int, ...], device: torch.device) -> slice | Tensor:
    """The choice among all items of `shape`, counted in one row, that one choice per dimension makes."""
    if len(shape) < 2:
        return choices[0] if shape else slice(0, 1)
    grid = torch.arange(math.prod(shape), device=device).view(shape)
    for dim, choice in enumerate(choices):
        grid = grid[(slice(None),) * dim + (choice,)]
    return _as_slice(grid.flatten())


def _as_slice(index: Tensor) -> slice | Tensor:
    """An index tensor as a slice, where it counts up by one."""
    if not readable(index):
        return index
    first = int(index[0]) if len(index) else 0
    counting = torch.arange(first, first + len(index), device=index.device)
    return slice(first, first + len(index)) if torch.equal(index, counting) else index


def _dims(item: Any) -> int:
    """How many dimensions an item of an index uses up."""
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, Tensor) and item.dtype == torch.bool:
        return item.dim()
    return 0 if isinstance(item, bool) else 1


def _name(dim: int, shape: tuple[int, ...]) -> str:
    return NAMES.get(dim - len(shape), "batch items")


def _position(item: int, dim: int, shape: tuple[int, ...]) -> int:
    size = shape[dim]
    if not -size <= item < size:
        raise IndexError(
            f"index {item} is out of range: weights of shape {shape} have {size} {_name(dim, shape)} (dimension {dim})."
        )
    return item % size


def _positions(item: Tensor, dim: int, shape: tuple[int, ...]) -> Tensor:
    size = shape[dim]
    if item.dtype == torch.bool:
        if len(item) != size:
            raise IndexError(
                f"a boolean index of {len(item)} does not fit: weights of shape {shape} have {size} "
                f"{_name(dim, shape)} (dimension {dim})."
            )
        return item.nonzero().flatten()
    if item.dtype.is_floating_point:
        raise IndexError(
            f"an index must be integers or booleans, got {str(item.dtype).removeprefix('torch.')}."
        )
    wrong = (item < -size) | (item >= size)
    if readable(item) and bool(wrong.any()):
        _position(int(item[wrong][0]), dim, shape)
    return item.long() % size
