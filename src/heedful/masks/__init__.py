"""Masks: who may look at whom. True means "may attend", everywhere.

    mask = masks.causal() & masks.documents(ids) | masks.prefix(4)

A mask is a rule, not a matrix, and nothing of size L x S is stored. Masks combine with `&`, `|` and `~`, also with
tensors. `from_...` takes the masks of other libraries.
"""

import torch
from torch import Tensor

from .._checks import boolean, describe, integers
from ._algebra import Dense, Mask, as_mask, dense
from ._convert import from_additive, from_cu_seqlens, from_flash_attn, from_torch
from ._patterns import Documents, Padding, Prefix, Window

__all__ = [
    "Dense",
    "Mask",
    "as_mask",
    "causal",
    "dense",
    "documents",
    "from_additive",
    "from_cu_seqlens",
    "from_flash_attn",
    "from_torch",
    "lengths",
    "padding",
    "prefix",
    "window",
]


def causal() -> Mask:
    """A query sees the keys up to its own position.

    The last query stands at the last key (what a cache needs); `query_start=0` in the call gives torch's `is_causal`.
    """
    return Window(None, 0)


def window(left: int | None, right: int | None = 0) -> Mask:
    """A query sees `left` keys ending with its own position, and `right` keys after it.

    Args:
        left: How many keys up to and including the query's own position; at least 1. None: all of them.
        right: How many keys after it. None: all of them.

    Note: flash-attn and ONNX do not count the query itself: their `left` is this one less 1.
    """
    for name, size, least in (("left", left, 1), ("right", right, 0)):
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < least):
            raise ValueError(
                f"window(): {name} must be None or an integer of at least {least}, got {size!r}. "
                "left counts the query itself, so window(1) sees the query's own position only."
            )
    return Window(left, right)


def prefix(lengths: int | Tensor) -> Mask:
    """Every query sees the first `lengths` keys (with `causal() |`, a prefix language model).

    Args:
        lengths: One number, which may be more than there are keys yet, or one per batch item (B,).
    """
    return Prefix(integers("prefix(): lengths", lengths))


def padding(keep: Tensor) -> Mask:
    """Only real tokens may be looked at.

    Args:
        keep: (B, S) bool or integer 0/1, True = real token; what tokenizers call attention_mask.
    """
    keep = boolean("padding(): keep", keep)
    if keep.dim() != 2:
        raise ValueError(
            f"padding(): keep must be (B, S), one row per batch item, got shape {tuple(keep.shape)}."
        )
    return Padding(keep)


def lengths(n: Tensor) -> Mask:
    """The first `n` keys of each batch item are real tokens, the rest is padding.

    Args:
        n: (B,) integers.
    """
    n = integers("lengths(): n", n)
    if n.dim() != 1:
        raise ValueError(f"lengths(): n must be (B,), one length per batch item, got shape {tuple(n.shape)}.")
    return Prefix(n)


def documents(ids: Tensor, key_ids: Tensor | None = None) -> Mask:
    """Packed documents: a query sees the keys of its own document (combine with `causal()` for a language model).

    Args:
        ids: Document of each key, (S,) or (B, S); a query takes the id at its position, so that with fewer queries
            than keys they are the last L. A negative id sees nothing and is seen by nobody (padding).
        key_ids: For cross-attention: then `ids` are the queries' own, (L,) or (B, L), and these the keys'.
    """
    for name, tensor in (("ids", ids), ("key_ids", key_ids)):
        if tensor is None and name == "key_ids":
            continue
        numbers = isinstance(tensor, Tensor) and not tensor.dtype.is_floating_point
        if not numbers or tensor.dtype == torch.bool or tensor.dim() not in (1, 2):
            raise ValueError(
                f"documents(): {name} must be an integer tensor (S,) or (B, S), got {describe(tensor)}. "
                "Give every token the number of its document, for example torch.tensor([0, 0, 1, 1, 1, -1])."
            )
    return Documents(ids.long(), None if key_ids is None else key_ids.long())
