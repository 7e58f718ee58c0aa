"""Keep what was seen: one safetensors file, with a description of masks, biases and questions in its header."""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from .. import backends, reductions
from .._call import Call, TensorBias
from .._files import read_safetensors, replace_file
from .._rows import Rows, all_rows
from .._unchanged import check_unchanged
from .._weights import Weights
from ..masks import Mask, _algebra, _patterns
from ..reductions import Reduction, TopKResult
from .answers import restored
from .seen import Seen
from .series import Series

FORMAT = "heedful.seen/1"
LARGEST_MATRIX = 2**28
KNOWN = {
    name: each
    for module in (_algebra, _patterns, reductions)
    for name, each in vars(module).items()
    if isinstance(each, type) and issubclass(each, Mask | Reduction) and dataclasses.is_dataclass(each)
}


def save(seen: Seen, path: str | os.PathLike[str]) -> None:
    """See `Seen.save`."""
    import safetensors.torch

    tensors = Tensors()
    modules = [
        {
            "name": name,
            "calls": _series(tensors, f"{i}", name, list(series)),
            "first_keys": series.first_keys,
        }
        for i, (name, series) in enumerate(seen._calls.items())
    ]
    header = {"model": seen._model, "order": seen._order, "missed": seen._missed, "modules": modules}
    data = safetensors.torch.save(tensors.kept, {"format": FORMAT, "seen": json.dumps(header)})
    replace_file(Path(path), data)


def load(path: str | os.PathLike[str]) -> Seen:
    """Read what `seen.save(path)` wrote.

    Args:
        path: The file.

    Returns:
        A `Seen` that answers as the saved one did, on the CPU and without gradients.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not such a file, or is of a newer format.

    Cost: the file, read once.
    """
    import safetensors

    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file {os.fspath(path)}. seen.save(path) writes one.")
    try:
        found, header = read_safetensors(path)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{os.fspath(path)} is damaged, or no safetensors file: {error}.") from None
    if header.get("format") != FORMAT:
        what = f"format {header['format']!r}" if "format" in header else "no format"
        raise ValueError(
            f"{os.fspath(path)} has {what}, expected {FORMAT!r}: it was not written by seen.save(), or by a newer "
            "heedful."
        )
    description = json.loads(header["seen"])
    seen = Seen(description["model"])
    seen._order, seen._missed = description["order"], description["missed"]
    for module in description["modules"]:
        calls: list[Weights] = []
        for given in reversed(module["calls"]):
            calls.insert(0, _read(found, given, calls[0] if calls else None))
        seen._calls[module["name"]] = Series(tuple(calls), tuple(module["first_keys"]))
    return seen


class Tensors:
    """Tensors to write, each once, however many masks or layers share it."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        self._alive: list[Tensor] = []

    def name(self, tensor: Tensor, wanted: str) -> str:
        """The name under which a tensor is written."""
        identity = tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype
        if identity not in self._names:
            self._names[identity] = wanted
            self._alive.append(tensor)
            self.kept[wanted] = tensor.detach().cpu().contiguous().clone()
        return self._names[identity]


def _series(tensors: Tensors, prefix: str, name: str, calls: list[Weights]) -> list[dict[str, Any]]:
    """The calls of one module. A call whose keys begin those of the next one shares them."""
    written: list[dict[str, Any]] = []
    for i, weights in reversed(list(enumerate(calls))):
        call = weights._call
        if call.edits and not _is_meta(call):
            raise NotImplementedError(
                f"{name!r}, call {i}, has an edit, which no file can hold. Watch with reductions, and save "
                "their answers."
            )
        following = calls[i + 1]._call if i + 1 < len(calls) else None
        written.insert(0, _written(tensors, f"{prefix}.{i}", weights, following))
    return written


def _is_meta(call: Call) -> bool:
    return call.query.device.type == "meta"


def _written(tensors: Tensors, prefix: str, weights: Weights, following: Call | None) -> dict[str, Any]:
    call = weights._call
    start = call.rows.start
    given: dict[str, Any] = {
        "batch_shape": list(weights._batch_shape),
        "head_shape": list(weights._head_shape),
        "start": start if isinstance(start, int) else start.tolist(),
        "answers": [
            _encoded_answer(tensors, f"{prefix}.{i}", *each)
            for i, each in enumerate(weights._answers.items())
        ],
    }
    if _is_meta(call):
        sizes = {name: list(getattr(call, name).shape) for name in ("query", "key", "value")}
        return {**given, "sizes": sizes, "dtype": str(call.query.dtype).removeprefix("torch.")}
    check_unchanged(call, weights._versions, value_too=True)
    shares = (
        following is not None and _begins(call.key, following.key) and _begins(call.value, following.value)
    )
    given["num_keys"] = call.key.shape[2] if shares else None
    for name in ("query",) if shares else ("query", "key", "value"):
        given[name] = tensors.name(getattr(call, name), f"{prefix}.{name}")
    given["mask"] = (
        None if call.mask is None else _encoded(tensors, f"{prefix}.mask", call.mask, _dense(call))
    )
    given["bias"] = [
        tensors.name(_bias(term, call), f"{prefix}.bias.{i}") for i, term in enumerate(call.bias)
    ]
    given["sinks"] = None if call.sinks is None else tensors.name(call.sinks, f"{prefix}.sinks")
    return {**given, "scale": call.scale, "softcap": call.softcap}


def _begins(short: Tensor, long: Tensor) -> bool:
    """Whether one tensor is the first keys of the other, in the same memory."""
    first = long[:, :, : short.shape[2]]
    return (short.data_ptr(), short.shape, short.stride()) == (first.data_ptr(), first.shape, first.stride())


def _dense(call: Call) -> Callable[[Mask], Tensor]:
    def dense(mask: Mask) -> Tensor:
        L, S = call.query.shape[2], call.key.shape[2]
        if L * S > LARGEST_MATRIX:
            raise NotImplementedError(
                f"A mask of type {type(mask).__name__} can only be saved as a matrix, and {L} x {S} is too large for "
                "that. Watch with reductions, and save their answers."
            )
        return mask.to_dense(L, S, call.rows.start)

    return dense


def _bias(term: Any, call: Call) -> Tensor:
    if isinstance(term, TensorBias):
        return term.tensor
    keys = range(call.key.shape[2])
    if call.query.shape[1] * call.query.shape[2] * len(keys) > LARGEST_MATRIX:
        raise NotImplementedError(
            f"A bias of type {type(term).__name__} can only be saved as a matrix, and this one is too large for that. "
            "Watch with reductions, and save their answers."
        )
    bias = term.bias(call.rows, keys)
    return bias[(None,) * (4 - bias.dim())]


def _encoded(tensors: Tensors, prefix: str, thing: Any, dense: Callable[[Mask], Tensor]) -> Any:
    """A mask, a reduction, or a value of one of their fields, as plain data and names of tensors."""
    if isinstance(thing, Tensor):
        return {"tensor": tensors.name(thing, prefix)}
    if isinstance(thing, tuple):
        return {"tuple": [_encoded(tensors, f"{prefix}.{i}", each, dense) for i, each in enumerate(thing)]}
    if not isinstance(thing, Mask | Reduction):
        return thing
    if KNOWN.get(type(thing).__name__) is not type(thing):
        if isinstance(thing, Reduction):
            raise NotImplementedError(
                f"{type(thing).__name__} is a reduction of your own, which no file can name. Keep its answers with "
                "torch.save."
            )
        keep = dense(thing)
        thing = _algebra.Dense(keep[(None,) * (4 - keep.dim())])
    fields = {
        field.name: _encoded(tensors, f"{prefix}.{field.name}", getattr(thing, field.name), dense)
        for field in dataclasses.fields(cast(Any, thing))
    }
    return {"type": type(thing).__name__, "fields": fields}


def _encoded_answer(tensors: Tensors, prefix: str, reduction: Reduction, answer: Any) -> dict[str, Any]:
    parts = answer if isinstance(answer, tuple) else (answer,)
    return {
        "reduction": _encoded(tensors, f"{prefix}.asked", reduction, lambda mask: mask.to_dense(0, 0)),
        "parts": [tensors.name(part, f"{prefix}.answer.{i}") for i, part in enumerate(parts)],
        "several": isinstance(answer, tuple),
    }


def _decoded(found: dict[str, Tensor], given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    if "tensor" in given:
        return found[given["tensor"]]
    if "tuple" in given:
        return tuple(_decoded(found, each) for each in given["tuple"])
    fields = {name: _decoded(found, value) for name, value in given["fields"].items()}
    return KNOWN[given["type"]](**fields)


def _read(found: dict[str, Tensor], given: dict[str, Any], following: Weights | None) -> Weights:
    answers = []
    for each in given["answers"]:
        reduction = _decoded(found, each["reduction"])
        parts = tuple(found[name] for name in each["parts"])
        kind = TopKResult if isinstance(reduction, reductions.TopK) else tuple
        answer = (kind(*parts) if kind is TopKResult else parts) if each["several"] else parts[0]
        answers.append((reduction, answer))
    shapes = tuple(given["batch_shape"]), tuple(given["head_shape"])
    if "sizes" in given:
        dtype = getattr(torch, given["dtype"])
        query, key, value = (
            torch.empty(given["sizes"][name], dtype=dtype, device="meta")
            for name in ("query", "key", "value")
        )
        return restored(
            Call(query, key, value, _rows(query, key, given["start"])), "reference", *shapes, answers
        )
    query = found[given["query"]]
    if given["num_keys"] is None:
        key, value = found[given["key"]], found[given["value"]]
    else:
        assert following is not None
        key, value = (x[:, :, : given["num_keys"]] for x in (following._call.key, following._call.value))
    call = Call(
        query,
        key,
        value,
        _rows(query, key, given["start"]),
        mask=_decoded(found, given["mask"]),
        bias=tuple(TensorBias(found[name]) for name in given["bias"]),
        scale=given["scale"],
        softcap=given["softcap"],
        sinks=None if given["sinks"] is None else found[given["sinks"]],
    )
    return Weights(call, backends.choose(call, "auto"), *shapes, answers, grad=False)


def _rows(query: Tensor, key: Tensor, start: int | list[int]) -> Rows:
    B, H, L, _ = query.shape
    place = start if isinstance(start, int) else torch.tensor(start)
    return all_rows(B, H, L, key.shape[2], place, query)
