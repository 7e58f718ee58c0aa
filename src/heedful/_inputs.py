"""Query, key and value: whether their types, dtypes, devices and shapes go together."""

import torch
from torch import Tensor


def check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise TypeError or ValueError, with the three side by side, unless attention can be made of them."""
    named = {"query": query, "key": key, "value": value}
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            numbers = isinstance(tensor, list | tuple) or hasattr(tensor, "__array__")
            remedy = f" Use torch.as_tensor({name})." if numbers else ""
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}.{remedy}")
        if not tensor.dtype.is_floating_point:
            if tensor.dtype.is_complex:
                raise TypeError(f"{name} must be real, got {tensor.dtype}: complex scores have no softmax.")
            raise TypeError(f"{name} must be floating point, got {tensor.dtype}. Use {name}.float().")
        if tensor.layout is not torch.strided:
            raise TypeError(
                f"{name} must be a dense tensor, got {tensor.layout}. Use {name}.to_dense(), "
                f"or {name}.to_padded_tensor(0.0) and masks.padding for a nested tensor."
            )

    of_query, of_key, of_value = [*query.shape], [*key.shape], [*value.shape]
    if not 3 <= len(of_query) == len(of_key) == len(of_value):
        _fail(
            named,
            ValueError,
            "query, key and value must have the same number of dimensions, 3 or more.",
            "Shapes are (batch, length, dim), or (batch, heads, length, dim); for one sequence write query[None].",
        )
    if not query.dtype == key.dtype == value.dtype:
        _fail(
            named,
            TypeError,
            "query, key and value must have one dtype.",
            "Cast them, for example key.to(query.dtype).",
        )
    if not query.device == key.device == value.device:
        _fail(
            named,
            ValueError,
            "query, key and value must be on one device.",
            "Move them, for example key.to(query.device).",
        )
    _check_shapes(named, of_query, of_key, of_value)


def _check_shapes(
    named: dict[str, Tensor], of_query: list[int], of_key: list[int], of_value: list[int]
) -> None:
    lead = -2 if len(of_query) == 3 else -3
    if not of_query[:lead] == of_key[:lead] == of_value[:lead]:
        _fail(
            named,
            ValueError,
            "query, key and value must have the same leading sizes.",
            "Batch sizes are never broadcast; write key.expand(...) if all items share one key.",
        )
    if of_query[-1] != of_key[-1]:
        _fail(
            named,
            ValueError,
            f"query and key must have the same last size: {of_query[-1]} and {of_key[-1]}.",
            "Their dot product is the score; only value may have another last size.",
        )
    if of_key[-2] != of_value[-2]:
        _fail(
            named,
            ValueError,
            f"key and value must have the same length: {of_key[-2]} and {of_value[-2]}.",
            "Each value row belongs to one key row. If a cache is one step behind, append to both before the call.",
        )
    heads, groups, groups_of_value = (1, 1, 1) if lead == -2 else (of_query[-3], of_key[-3], of_value[-3])
    if groups != groups_of_value or (heads % groups if groups else heads):
        _fail(
            named,
            ValueError,
            f"heads do not divide: query has {heads}, key {groups}, value {groups_of_value}.",
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
