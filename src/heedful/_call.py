"""One call of the function, its arguments checked and in one form."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ._checks import (
    INTEGERS,
    NUMBERS,
    above_zero,
    answer_dtype,
    boolean,
    broadcasts,
    describe,
    readable,
    share,
    tensors_of,
)
from ._inputs import check_tensors
from ._rows import Index, Rows, all_rows
from .masks import Dense, Mask
from .reductions import Edit, Reduction

FARTHEST = 2**62  # a position that integers of 64 bits can still add to


@dataclass(frozen=True, eq=False)
class TensorBias:
    """A bias given in full: (B or 1, H or 1, L or 1, S or 1)."""

    tensor: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.tensor,)

    def bias(self, rows: Rows, keys: range) -> Tensor:
        return rows.of(self.tensor, keys)


@dataclass(eq=False)
class Call:
    """Everything a backend needs to know, checked and in one form.

    Attributes:
        query: (B, H, L, E); key: (B, G, S, E); value: (B, G, S, Ev). H is a multiple of G, neighbors share a key head.
        rows: Where these queries lie in the caller's call; masks and biases speak about that.
        mask: Who may look, or None for everybody.
        bias: Terms added to the scores, each with `bias(rows, keys)` and `tensors`.
        scale: Factor on the dot products.
        softcap: Scores become softcap * tanh(scores / softcap), or None.
        sinks: (H,) logits of a key without a value, or None.
        dropout_p: Share of weights dropped before they meet the values.
        seed: The number dropout hashes with; a tensor while a compiler traces.
        edits: Functions panel -> weights, applied in order.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    rows: Rows
    mask: Mask | None = None
    bias: tuple[Any, ...] = ()
    scale: float = 1.0
    softcap: float | None = None
    sinks: Tensor | None = None
    dropout_p: float = 0.0
    seed: int | Tensor = 0
    edits: tuple[Edit, ...] = ()

    @property
    def dtype(self) -> torch.dtype:
        """What is computed and answered in."""
        return answer_dtype(self.query)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors that a gradient may reach: query, key, value, and what sinks, biases and edits close over."""
        owners = (*self.bias, *self.edits)
        others = {id(tensor): tensor for owner in owners for tensor in tensors_of(owner)}
        sinks = () if self.sinks is None else (self.sinks,)
        return self.query, self.key, self.value, *sinks, *others.values()

    def detach(self) -> "Call":
        """The same call, outside of autograd."""
        bias = tuple(
            TensorBias(term.tensor.detach()) if isinstance(term, TensorBias) else term for term in self.bias
        )
        query, key, value = (x.detach() for x in (self.query, self.key, self.value))
        sinks = None if self.sinks is None else self.sinks.detach()
        return replace(self, query=query, key=key, value=value, sinks=sinks, bias=bias)

    def select(self, batch: Index, heads: Index, index: Index) -> "Call":
        """The same call for some batch items, heads and queries. Slices give views."""
        per_group = max(self.query.shape[1] // max(self.key.shape[1], 1), 1)
        kv_heads: Index
        if isinstance(heads, slice) and heads.start % per_group == 0 and heads.stop % per_group == 0:
            kv_heads = slice(heads.start // per_group, heads.stop // per_group)
        else:
            device = self.key.device
            chosen = (
                torch.arange(heads.start, heads.stop, device=device) if isinstance(heads, slice) else heads
            )
            kv_heads = chosen // per_group
        return replace(
            self,
            query=self.query[batch][:, heads][:, :, index],
            key=self.key[batch][:, kv_heads],
            value=self.value[batch][:, kv_heads],
            sinks=None if self.sinks is None else self.sinks[heads],
            rows=self.rows.part(batch, heads, index),
        )


def make_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | Tensor | None,
    attn_bias: Any,
    query_start: int | Tensor | None,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None,
    dropout_p: float,
    edit: Edit | Sequence[Edit] | None,
) -> Call:
    """Check the arguments of `scaled_dot_product_attention` and bring them into one form."""
    check_tensors(query, key, value)
    given = query
    if query.dim() != 4:
        query, key, value = _four_dims(query), _four_dims(key), _four_dims(value)
    B, H, L, E = query.shape
    S = key.shape[2]
    sizes = (B, H, L, S)
    rows = all_rows(B, H, L, S, S - L if query_start is None else _query_start(query_start, B), query)
    return Call(
        query,
        key,
        value,
        rows,
        mask=None if mask is None else _mask(mask, given.shape[:-3], sizes, query.device),
        bias=() if attn_bias is None else _bias(attn_bias, given.shape[:-3], rows),
        scale=_scale(scale, E),
        softcap=None if softcap is None else _softcap(softcap),
        sinks=None if sinks is None else _sinks(sinks, H, query.device),
        dropout_p=_dropout(dropout_p),
        seed=_seed() if dropout_p else 0,
        edits=() if edit is None else check_edits(edit, sizes),
    )


def check_reductions(reduce: Reduction | Sequence[Reduction]) -> tuple[Reduction, ...]:
    """What `reduce=` was given, as a tuple of reductions."""
    given: Any = reduce
    reductions = tuple(given) if isinstance(given, list | tuple | set | frozenset) else (given,)
    for reduction in reductions:
        if not isinstance(reduction, Reduction):
            made = f" Write {reduction.__name__}()." if isinstance(reduction, type) else ""
            made = " Leave it out to ask nothing." if reduction is None else made
            raise TypeError(
                f"reduce must hold reductions such as heedful.Entropy() or heedful.TopK(8), got {reduction!r}.{made}"
            )
    return reductions


def _four_dims(tensor: Tensor) -> Tensor:
    return tensor[:, None] if tensor.dim() == 3 else tensor.flatten(0, -4)


def _query_start(query_start: int | Tensor, B: int) -> int | Tensor:
    if isinstance(query_start, INTEGERS) and not isinstance(query_start, bool):
        if readable():
            _check_reach(query_start)
        return query_start if isinstance(query_start, torch.SymInt) else int(query_start)
    if (
        isinstance(query_start, Tensor)
        and not query_start.dtype.is_floating_point
        and not query_start.dtype.is_complex
        and query_start.dtype != torch.bool
        and query_start.numel() in (1, B)
    ):
        start = query_start.detach().flatten().to(torch.int64, copy=True)  # its owner may count on in it
        if not readable(start):
            return start.expand(B)
        for each in start.tolist():
            _check_reach(each)
        return as_start(start)
    raise ValueError(
        f"query_start must be an integer or an integer tensor (B,) with B = {B}, got {describe(query_start)}. "
        "It is the position of the first query among the keys; None puts the last query at the last key."
    )


def _check_reach(start: Any) -> None:
    if not -FARTHEST <= start <= FARTHEST:
        raise ValueError(f"query_start must be a position from -2**62 to 2**62, got {start}.")


def as_start(start: Tensor) -> int | Tensor:
    """Positions of first queries, (1,) or (B,): one number if all are the same, else a tensor on the CPU."""
    start = start.cpu()
    return int(start[0]) if len(start) == 1 or bool((start == start[0]).all()) else start


def _mask(
    mask: Mask | Tensor, batch_shape: Sequence[int], sizes: tuple[int, int, int, int], device: torch.device
) -> Mask:
    if isinstance(mask, Tensor):
        mask = boolean("mask", mask)
        mask = Dense(_fit("mask", mask, batch_shape, sizes))
    if not isinstance(mask, Mask):
        remedy = " Call it to make a mask." if callable(mask) else ""
        raise TypeError(
            f"mask must be a heedful mask such as masks.causal(), or a bool tensor, True = may attend, "
            f"got {describe(mask)}.{remedy}"
        )
    complaints = mask.misfits(*sizes)
    if complaints:
        B, H, L, S = sizes
        raise ValueError(f"mask does not fit the call (B={B}, H={H}, L={L}, S={S}): {'; '.join(complaints)}.")
    for tensor in mask.tensors:
        if tensor.dim() and tensor.device != device:
            raise ValueError(
                f"mask is on {tensor.device}, query on {device}. Move it with .to(query.device)."
            )
    return mask


def _fit(name: str, tensor: Tensor, batch_shape: Sequence[int], sizes: tuple[int, int, int, int]) -> Tensor:
    """A mask or bias tensor as (B or 1, H or 1, L or 1, S or 1). A call of three dimensions has no batch shape."""
    dims = len(batch_shape) + 3
    B, H, L, S = sizes
    given = tuple(tensor.shape)
    if tensor.dim() == 3 and dims > 3:
        raise ValueError(
            f"{name} is 3-D {given} while query is {dims}-D, so its first size could mean batch or heads. "
            f"Write {name}[:, None] for one per batch item, or {name}[None] for one per head."
        )
    if tensor.dim() == 2:
        tensor = tensor[None, None]
    elif tensor.dim() == dims:
        tensor = tensor[:, None] if dims == 3 else _one_batch(tensor, batch_shape) if dims > 4 else tensor
    if tensor.dim() != 4 or any(
        size not in (1, full) for size, full in zip(tensor.shape, sizes, strict=True)
    ):
        batch = "B, " if dims == 3 else f"{', '.join(map(str, batch_shape))}, H, " if dims > 4 else "B, H, "
        full = f"(L, S) or ({batch}L, S)"
        raise ValueError(
            f"{name} must be {full}, or 1 where it repeats, with B={B}, H={H}, L={L}, S={S}; got {given}."
        )
    return tensor


def _one_batch(tensor: Tensor, batch_shape: Sequence[int]) -> Tensor:
    """A mask or bias whose batch sizes fit those of the call, with one of them, 1 or B; another is left as it is."""
    leading = tuple(tensor.shape[:-3])
    if not broadcasts(leading, tuple(batch_shape)):
        return tensor
    whole = tensor if max(leading) <= 1 else tensor.expand(*batch_shape, -1, -1, -1)
    return whole.flatten(0, -4)


def _bias(attn_bias: Any, batch_shape: Sequence[int], rows: Rows) -> tuple[Any, ...]:
    terms = attn_bias if isinstance(attn_bias, tuple | list) else (attn_bias,)
    found = []
    for term in terms:
        if isinstance(term, Tensor):
            if not term.dtype.is_floating_point:
                raise TypeError(
                    f"attn_bias must be floating point, got {describe(term)}. "
                    "It is added to the scores; a bool or 0/1 tensor that says who may attend goes into mask."
                )
            if term.device != rows.device:
                raise ValueError(
                    f"attn_bias is on {term.device}, query on {rows.device}. Move it with .to(query.device)."
                )
            term = TensorBias(_fit("attn_bias", term, batch_shape, (*rows.shape, rows.num_keys)))
        elif not callable(getattr(term, "bias", None)):
            remedy = " It says who may attend: write mask=." if isinstance(term, Mask) else ""
            raise TypeError(
                f"attn_bias must be a tensor, an object with bias(rows, keys) such as heedful.Alibi, "
                f"or a tuple of them, got {type(term).__name__}.{remedy}"
            )
        elif isinstance(term, type):
            raise TypeError(
                f"attn_bias got the class {term.__name__}; make one of it, such as heedful.Alibi(num_heads)."
            )
        found.append(term)
    return tuple(found)


def _scale(scale: float | None, E: int) -> float:
    if scale is None:
        return E**-0.5 if E else 1.0
    if isinstance(scale, Tensor) and scale.requires_grad:
        raise ValueError(
            "scale must be a number, got a tensor that wants a gradient, which would not reach it. Multiply query by "
            "it and pass scale=1."
        )
    if isinstance(scale, Tensor) and scale.numel() == 1:
        scale = scale.item()
    if isinstance(scale, bool) or not isinstance(scale, NUMBERS) or not -math.inf < scale < math.inf:
        raise ValueError(f"scale must be a finite number, got {scale!r}. None gives head_dim ** -0.5.")
    return float(scale)


def _softcap(softcap: float) -> float:
    above_zero(
        "softcap",
        softcap,
        " Scores become softcap * tanh(scores / softcap); None leaves them as they are.",
    )
    return float(softcap)


def _sinks(sinks: Tensor, H: int, device: torch.device) -> Tensor:
    if not isinstance(sinks, Tensor) or not sinks.dtype.is_floating_point or sinks.shape != (H,):
        raise ValueError(
            f"sinks must be a floating-point tensor (H,) with H = {H}, one logit per head, got {describe(sinks)}."
        )
    if sinks.device != device:
        raise ValueError(f"sinks is on {sinks.device}, query on {device}. Move it with .to(query.device).")
    return sinks


def check_edits(edit: Edit | Sequence[Edit], sizes: tuple[int, int, int, int]) -> tuple[Edit, ...]:
    """What `edit=` was given, as a tuple of functions that fit a call of sizes (B, H, L, S)."""
    given: Any = edit
    edits: tuple[Any, ...] = (given,) if callable(given) or not isinstance(given, Iterable) else tuple(given)
    for each in edits:
        if not callable(each):
            raise TypeError(f"edit must be a function panel -> weights, or a sequence of them, got {each!r}.")
        misfits = getattr(each, "misfits", None)
        complaints = misfits(*sizes) if misfits else []
        if complaints:
            B, H, L, S = sizes
            raise ValueError(
                f"edit does not fit the call (B={B}, H={H}, L={L}, S={S}): {'; '.join(complaints)}."
            )
    return edits


def _dropout(dropout_p: float) -> float:
    share("dropout_p", dropout_p, " It is the share that is dropped.")
    return float(dropout_p)


def _seed() -> int | Tensor:
    seed = torch.randint(2**31, (), device="cpu")
    return int(seed) if readable(seed) else seed
