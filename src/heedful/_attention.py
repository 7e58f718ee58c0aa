"""Scaled dot-product attention: validate the call, choose a backend, run it. Read this file first."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Never

import torch
from jaxtyping import Float
from torch import Tensor

from . import backends
from ._call import check_reductions, make_call
from ._checks import autocast_dtype, readable, unknown_arguments
from ._listeners import listeners
from ._pytrees import register_namedtuple
from ._weights import Weights
from .backends._compiled import Later
from .masks import Mask
from .reductions import Edit, Reduction


class Attention(NamedTuple):
    """What attention returns: `output, weights = scaled_dot_product_attention(...)`."""

    output: Tensor
    weights: Weights


register_namedtuple(Attention)


def scaled_dot_product_attention(
    query: Float[Tensor, "*batch heads L E"],
    key: Float[Tensor, "*batch kv_heads S E"],
    value: Float[Tensor, "*batch kv_heads S Ev"],
    mask: Mask | Tensor | None = None,
    *,
    attn_bias: Any = None,
    query_start: int | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
    edit: Edit | Sequence[Edit] | None = None,
    reduce: Reduction | Sequence[Reduction] = (),
    backend: str = "auto",
    **unknown: Never,
) -> Attention:
    """Attend, and keep the weights to ask.

    The output is softmax(query @ key.mT * scale, restricted by the mask) @ value. The weights behind it are never
    built: `weights` is the matrix as a lazy operator, and you pay for what you look at.

    Args:
        query: (..., H, L, E), who looks. Three dimensions, (batch, L, E), are a batch with one head.
        key: (..., G, S, E), what is looked at, in the dtype and on the device of `query`. H is a multiple of G, and
            neighboring query heads share a key head.
        value: (..., G, S, Ev), what is returned.
        mask: Who may look at whom: a mask from `heedful.masks`, or a bool or integer 0/1 tensor, True = may attend,
            (L, S) or (..., H, L, S) with sizes of 1 where it repeats. A float mask is refused.
        attn_bias: Added to the scores: a float tensor (shapes as for `mask`; -inf forbids), an object with
            `bias(rows, keys)` such as `heedful.Alibi`, or a tuple of them.
        query_start: Position of the first query among the keys, an integer or one per batch item (B,). None: S - L,
            the last query stands at the last key. `query_start=0` with `masks.causal()` is torch's `is_causal`.
        scale: Factor on the dot products. None: E ** -0.5.
        softcap: Scores become softcap * tanh(scores / softcap), before bias and mask (Gemma 2).
        sinks: (H,) logits of a key that has no value; rows then sum to 1 less its share (GPT-OSS).
        dropout_p: Share of the weights dropped before they meet the values. `weights` are those before dropout.
            One number is drawn from torch's generator per call, so `torch.manual_seed` repeats it.
        edit: A function panel -> weights, or several, that change the weights before the values are summed.
        reduce: Questions to answer in the same pass, such as `heedful.Entropy()`; `weights` remembers the answers.
        backend: "auto" for the first backend that takes the call, or a name; a named backend never hands over.
        unknown: Nothing else is taken; an argument of torch's gets an error that says what to write.

    Returns:
        `Attention(output, weights)`: output (..., H, L, Ev) in the dtype of `query`; weights of shape (..., H, L, S).
        A query that sees nothing gets output 0 and weights 0. Masked pairs never influence anything.

    Raises:
        TypeError, ValueError: An argument has the wrong type, dtype, shape or value; the message names it.
        NotImplementedError: The backend cannot take the call; the message gives its reasons.

    Cost:
        Time L x S x (E + Ev) per head, less where the mask forbids; memory O(L + S), forward and backward. A second
        derivative keeps the panels: L x S.

    Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1.

    Example:
        >>> query, key, value = torch.randn(3, 2, 4, 8).unbind()
        >>> output, weights = scaled_dot_product_attention(query, key, value)
        >>> torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 4))
    """
    if unknown:
        raise TypeError(
            f"scaled_dot_product_attention() has no {unknown_arguments(unknown, scaled_dot_product_attention)}"
        )
    reductions = check_reductions(reduce)
    query, key, value = _as_autocast(query, key, value)
    call = make_call(query, key, value, mask, attn_bias, query_start, scale, softcap, sinks, dropout_p, edit)
    present = listeners()
    for listener in present:
        call, reductions = listener.before(call, reductions)
    chosen = backends.choose(call, backend) if readable(query) else Later(backend)
    *leading, L, _ = query.shape
    batch_shape, head_shape = (leading, []) if query.dim() == 3 else (leading[:-1], leading[-1:])
    weights = Weights(call, chosen, batch_shape, head_shape)
    output, answers = backends.run(chosen, call, reductions)
    if reductions:
        weights._remembered += zip(reductions, answers, strict=True)
    for listener in present:
        listener.after(weights)
    assert output is not None
    return Attention(output if query.dim() == 4 else output.view(*leading, L, value.shape[-1]), weights)


def _as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the dtype that autocast asks for, as torch does for its own attention; float64 stays."""
    dtype = autocast_dtype(tensors[0])
    if dtype is None or not all(isinstance(tensor, Tensor) for tensor in tensors):
        return tensors
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors)
