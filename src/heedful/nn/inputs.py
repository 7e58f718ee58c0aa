"""What `MultiHeadAttention` is given, checked, and masks brought to the shapes of the function."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from heedful import masks
from heedful._checks import above_zero, at_least_one, autocast_dtype, share
from heedful.nn.cache import KVCache

if TYPE_CHECKING:
    from heedful.nn.attention import MultiHeadAttention


def check_settings(
    embed_dim: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int | None,
    dropout: float,
    position: Any,
    softcap: float | None,
) -> None:
    """Raise unless the arguments of the module fit together."""
    numbers = {"embed_dim": embed_dim, "num_heads": num_heads, "num_kv_heads": num_kv_heads}
    for name, number in (numbers if head_dim is None else {**numbers, "head_dim": head_dim}).items():
        at_least_one(name, number)
    if head_dim is None and embed_dim % num_heads:
        raise ValueError(
            f"embed_dim must be divisible by num_heads, got {embed_dim} and {num_heads}. "
            "Or give head_dim, the size of each head."
        )
    if num_heads % num_kv_heads:
        raise ValueError(
            f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {num_kv_heads}: "
            "each key head serves the same number of neighboring query heads."
        )
    share("dropout", dropout)
    if softcap is not None:
        above_zero("softcap", softcap, " None leaves the scores as they are.")
    if position is not None:
        _check_position(position, num_heads)


def _check_position(position: Any, num_heads: int) -> None:
    if isinstance(position, type):
        raise TypeError(
            f"position must be an object, got the class {position.__name__}. Write {position.__name__}(...)."
        )
    if not any(callable(getattr(position, method, None)) for method in ("embed", "rotate", "bias")):
        raise TypeError(
            f"position must have a method embed, rotate or bias, as those in heedful.positions do, got {position!r}."
        )
    if getattr(position, "num_heads", num_heads) != num_heads:
        raise ValueError(f"position is for {position.num_heads} heads, num_heads is {num_heads}.")


def check_inputs(
    module: "MultiHeadAttention", query: Tensor, key: Tensor, value: Tensor, cache: KVCache | None
) -> None:
    """Raise unless the inputs of a call fit the module, each other, and the cache."""
    sizes = {"query": module.embed_dim, "key": module.kdim, "value": module.vdim}
    for (name, size), tensor in zip(sizes.items(), (query, key, value), strict=True):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}.")
        if tensor.ndim != 3 or tensor.shape[2] != size:
            single = f" For a single sequence, give {name}[None]." if tensor.ndim == 2 else ""
            raise ValueError(f"{name} must be (batch, length, {size}), got {tuple(tensor.shape)}.{single}")
        _check_dtype(name, tensor, getattr(module, f"{name[0]}_proj"))
    if not query.shape[0] == key.shape[0] == value.shape[0] or key.shape[1] != value.shape[1]:
        raise ValueError(
            "query, key and value must have one batch size, and key and value one length.\n"
            f"  query  {tuple(query.shape)}\n  key    {tuple(key.shape)}\n  value  {tuple(value.shape)}\n"
            "They are batch first: (batch, length, size)."
        )
    if cache is None:
        return
    if not isinstance(cache, KVCache):
        raise TypeError(
            f"cache must be a heedful.KVCache, got {type(cache).__name__}. Each layer needs its own."
        )
    if query.shape[1] > key.shape[1]:
        raise ValueError(
            f"query must not be longer than the tokens added to the cache, got {query.shape[1]} and {key.shape[1]}: "
            "the queries are the last of the new tokens."
        )


def _check_dtype(name: str, tensor: Tensor, projection: nn.Module) -> None:
    """A plain projection takes its own dtype only, but where autocast or a hook converts what it is given."""
    if type(projection) is not nn.Linear or projection._forward_pre_hooks:
        return
    floating, dtype = tensor.is_floating_point(), projection.weight.dtype
    converted = floating and tensor.dtype != torch.float64 and autocast_dtype(tensor) is not None
    if tensor.dtype != dtype and not converted:
        other = f", or convert the module with .to({tensor.dtype})" if floating else ""
        raise TypeError(
            f"{name} must have the dtype of the module, {dtype}, got {tensor.dtype}. Use {name}.to({dtype}){other}."
        )


def fit_mask(
    mask: masks.Mask | Tensor | None, query: Tensor, key: Tensor, cache: KVCache | None
) -> masks.Mask | Tensor | None:
    """The mask in a shape that the function takes, with what the cache allows."""
    if isinstance(mask, Tensor) and not mask.dtype.is_floating_point:  # the function refuses a float mask
        mask = _four_dims(mask, query, key)
        if cache is not None and cache.start and mask.shape[-1] == cache.longest:
            mask = mask[..., cache.start :]
    allowed = None if cache is None else cache.mask()
    if allowed is None or mask is None:
        return mask if allowed is None else allowed
    return allowed & mask


def _four_dims(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A tensor (L, S), (batch, S), (batch, L, S) or (batch, heads, L, S) as the last of these."""
    batch, _, L, _ = query.shape
    given = tuple(mask.shape)
    if mask.ndim == 2 and given[0] != 1:
        if given[0] == L == batch:
            raise ValueError(
                f"mask is {given} while batch and query length are both {L}, so its first size could mean either. "
                "Write mask[:, None, None] for one row of keys per batch item, or mask[None, None] for one per query."
            )
        if given[0] == batch:
            return mask[:, None, None]
    if mask.ndim == 2 and given[0] in (1, L):
        return mask[None, None]
    if mask.ndim == 3 and given[0] in (1, batch):
        return mask[:, None]
    if mask.ndim == 4:
        return mask
    raise ValueError(
        f"mask must be (L, S), (batch, S), (batch, L, S) or (batch, heads, L, S), with batch = {batch}, L = {L}, "
        f"S = {key.shape[2]}; got {given}."
    )
