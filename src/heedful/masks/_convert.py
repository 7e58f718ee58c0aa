"""Masks of other libraries, whose True, shapes and windows mean something else."""

import torch
from torch import Tensor

from .._checks import describe, readable
from ._algebra import Dense, Mask
from ._patterns import Documents, Padding, Window


def from_torch(
    attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, *, num_heads: int | None = None
) -> Mask:
    """The masks of `nn.MultiheadAttention` and `nn.Transformer`, in which True means hidden.

    A float mask is taken where it hides: 0 is visible, -inf hidden, as `nn.Transformer.generate_square_subsequent_mask`
    makes it. `F.scaled_dot_product_attention` is another matter: there True means "may attend", as here.

    Args:
        attn_mask: (L, S), or (batch * heads, L, S); bool or float.
        key_padding_mask: (batch, S), or (S,) for a single sequence; bool or float.
        num_heads: Number of heads, needed to read an `attn_mask` of three dimensions.

    Returns:
        A mask that hides what either hides.

    Raises:
        TypeError, ValueError: Neither is given, or one has another dtype, shape or value.

    Cost: one bool for each number given.
    """
    found: list[Mask] = []
    if attn_mask is not None:
        keep = _visible("from_torch(): attn_mask", attn_mask)
        if keep.dim() == 3:
            if num_heads is None or num_heads < 1 or len(keep) % num_heads:
                raise ValueError(
                    f"from_torch(): num_heads must divide the first size of attn_mask {tuple(keep.shape)}, "
                    f"which is batch * heads; got {num_heads}."
                )
            keep = keep.unflatten(0, (-1, num_heads))
        elif keep.dim() != 2:
            raise ValueError(
                f"from_torch(): attn_mask must be (L, S) or (batch * heads, L, S), got {tuple(keep.shape)}."
            )
        found.append(Dense(keep if keep.dim() == 4 else keep[None, None]))
    if key_padding_mask is not None:
        keep = _visible("from_torch(): key_padding_mask", key_padding_mask)
        if keep.dim() not in (1, 2):
            raise ValueError(
                f"from_torch(): key_padding_mask must be (batch, S) or (S,), got {tuple(keep.shape)}."
            )
        found.append(Padding(keep if keep.dim() == 2 else keep[None]))
    if not found:
        raise ValueError(
            "from_torch() needs attn_mask or key_padding_mask; got neither. No mask is mask=None."
        )
    return found[0] if len(found) == 1 else found[0] & found[1]


def from_additive(bias: Tensor) -> Mask:
    """A mask that others add to the scores: 0 where a query may attend, a hugely negative number where not.

    Such are the four-dimensional masks inside transformers, filled with the smallest finite number of their dtype.
    Given as `attn_bias`, a row that is hidden altogether would look at hidden keys; by a mask its output is 0.

    Args:
        bias: Floats, (L, S), or (B, H, L, S) with sizes of 1 where it repeats; each is 0, or at most -10,000.

    Raises:
        TypeError: It is not a float tensor.
        ValueError: It has other numbers, and so is a bias, or another number of dimensions.

    Cost: one bool for each number given.
    """
    if not isinstance(bias, Tensor) or not bias.dtype.is_floating_point:
        raise TypeError(
            f"from_additive(): bias must be a float tensor of zeros and hugely negative numbers, got {describe(bias)}. "
            "A bool or 0/1 tensor is a mask as it is."
        )
    if bias.dim() not in (2, 4):
        raise ValueError(
            f"from_additive(): bias must be (L, S) or (B, H, L, S), got {tuple(bias.shape)}. "
            "For one per batch item write bias[:, None]."
        )
    keep = _visible("from_additive(): bias", bias)
    return Dense(keep if keep.dim() == 4 else keep[None, None])


def from_flash_attn(*, causal: bool = False, window_size: tuple[int | None, int | None] = (-1, -1)) -> Mask:
    """What `flash_attn_func(..., causal=causal, window_size=window_size)` lets a query see.

    There a window of (left, right) leaves out the query itself: it sees left + 1 + right keys. Both align the last
    query with the last key, so the call needs no `query_start`.

    Args:
        causal: Whether later keys are hidden, whatever the window's right side.
        window_size: Keys before and after the query; -1 and None are unbounded.

    Raises:
        ValueError: `window_size` is not a pair of such numbers.
    """
    if (
        not isinstance(window_size, tuple | list)
        or len(window_size) != 2
        or not all(size is None or (type(size) is int and size >= -1) for size in window_size)
    ):
        raise ValueError(
            "from_flash_attn(): window_size must be (left, right), integers of at least 0, or -1 for no bound; "
            f"got {window_size!r}."
        )
    left, right = (None if size in (None, -1) else size for size in window_size)
    return Window(None if left is None else left + 1, 0 if causal else right)


def from_cu_seqlens(cu_seqlens: Tensor, length: int) -> Mask:
    """Documents packed into one sequence, given by where each begins, as flash-attn's `cu_seqlens`.

    Combine it with `causal()` for a language model. Tokens after the last boundary see nothing and are seen by nobody.

    Args:
        cu_seqlens: (documents + 1,) integers: 0, and where each document ends.
        length: Number of tokens, those after the last boundary too.

    Raises:
        ValueError: `cu_seqlens` does not begin with 0, goes down, or ends after `length`.

    Cost: one integer for each token.
    """
    given = isinstance(cu_seqlens, Tensor) and not cu_seqlens.dtype.is_floating_point
    if not given or cu_seqlens.dim() != 1 or cu_seqlens.dtype == torch.bool or not len(cu_seqlens):
        raise ValueError(
            f"from_cu_seqlens(): cu_seqlens must be an integer tensor (documents + 1,), got {describe(cu_seqlens)}."
        )
    if readable(cu_seqlens) and (
        int(cu_seqlens[0]) != 0 or int(cu_seqlens[-1]) > length or bool((cu_seqlens.diff() < 0).any())
    ):
        raise ValueError(
            f"from_cu_seqlens(): cu_seqlens must begin with 0, never go down, and end at {length} at most, "
            f"got {cu_seqlens.tolist()}."
        )
    tokens = torch.arange(length, device=cu_seqlens.device)
    document = torch.searchsorted(cu_seqlens[1:].long(), tokens, right=True)
    return Documents(document.masked_fill(document == len(cu_seqlens) - 1, -1))


def _visible(name: str, mask: Tensor) -> Tensor:
    """Who may attend, from a mask that says who may not: a bool, or a float that is added to the scores."""
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.dtype.is_floating_point):
        raise TypeError(f"{name} must be a bool or float tensor, got {describe(mask)}.")
    if mask.dtype == torch.bool:
        return ~mask
    hidden = mask <= -1e4
    if readable(mask) and not bool((hidden | (mask == 0)).all()):
        raise ValueError(
            f"{name} has numbers other than 0 and -inf, so it is a bias and not a mask. Give it as attn_bias."
        )
    return ~hidden
