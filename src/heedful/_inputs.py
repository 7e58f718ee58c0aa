"""Query, key and value: whether their types, dtypes, devices and shapes go together."""

from functools import partial

import torch
from torch import Tensor


def check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise TypeError or ValueError, with the three side by side, unless attention can be made of them."""
    named = {"query": query, "key": key, "value": value}
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            remedy = "" if tensor is None else f" Use torch.as_tensor({name})."
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}.{remedy}")
        if tensor.dtype.is_complex:
            raise TypeError(f"{name} must be real, got {tensor.dtype}: complex scores have no softmax.")
        if not tensor.dtype.is_floating_point:
            raise TypeError(f"{name} must be floating point, got {tensor.dtype}. Use {name}.float().")
        if tensor.layout is not torch.strided:
            raise TypeError(
                f"{name} must be a dense tensor, got {tensor.layout}. Use {name}.to_dense(), "
                f"or {name}.to_padded_tensor(0.0) and masks.padding for a nested tensor."
            )

    fail = partial(_fail, named)
    if not 3 <= query.dim() == key.dim() == value.dim():
        fail(
            ValueError,
            "query, key and value must have the same number of dimensions, 3 or more.",
            "Shapes are (batch, length, dim), or (batch, heads, length, dim); for one sequence write query[None].",
        )
    if not query.dtype == key.dtype == value.dtype:
        fail(
            TypeError,
            "query, key and value must have one dtype.",
            "Cast them, for example key.to(query.dtype).",
        )
    if not query.device == key.device == value.device:
        fail(
            ValueError,
            "query, key and value must be on one device.",
            "Move them, for example key.to(query.device).",
        )
    lead = -2 if query.dim() == 3 else -3
    if not query.shape[:lead] == key.shape[:lead] == value.shape[:lead]:
        fail(
            ValueError,
            "query, key and value must have the same leading sizes.",
            "Batch sizes are never broadcast; write key.expand(...) if all items share one key.",
        )
    if query.shape[-1] != key.shape[-1]:
        fail(
            ValueError,
            f"query and key must have the same last size: {query.shape[-1]} and {key.shape[-1]}.",
            "Their dot product is the score; only value may have another last size.",
        )
    if key.shape[-2] != value.shape[-2]:
        fail(
            ValueError,
            f"key and value must have the same length: {key.shape[-2]} and {value.shape[-2]}.",
            "Each value row belongs to one key row. If a cache is one step behind, append to both before the call.",
        )
    if query.dim() > 3:
        _check_heads(named)


def _check_heads(named: dict[str, Tensor]) -> None:
    heads, groups, of_value = (tensor.shape[-3] for tensor in named.values())
    if groups != of_value or (heads % groups if groups else heads):
        _fail(
            named,
            ValueError,
            f"heads do not divide: query has {heads}, key {groups}, value {of_value}.",
            "Key and value must have the same number of heads, and query a multiple of it: "
            "neighboring query heads share a key head.",
        )


def _fail(named: dict[str, Tensor], error: type[Exception], what: str, remedy: str) -> None:
    width = max(map(len, named))
    shown = [
        f"  {name:<{width}}  {str(tensor.dtype).removeprefix('torch.')} {tensor.device} {tuple(tensor.shape)}"
        for name, tensor in named.items()
    ]
    raise error("\n".join([what, *shown, remedy]))
