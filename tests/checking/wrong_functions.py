"""Mistakes and hazards that don't fit the one function of `wrong_attention`: one small attention for each."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def dense(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> Tensor:
    """A right attention, except that empty rows are NaN."""
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.size(3) ** 0.5
    if keep is not None:
        scores = torch.where(keep, scores, torch.tensor(-math.inf, dtype=scores.dtype))
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(3), v)


def softmax_overflow(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(torch.einsum("bhid,bhjd->bhij", q, k) / q.size(3) ** 0.5)
    return torch.einsum("bhij,bhjd->bhid", e / e.sum(3, keepdim=True), v)


def softmax_low_precision(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16()).to(q.dtype)


def softmax_not_rescaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Online softmax in blocks of 64; only the output is rescaled."""
    top = torch.full((*q.shape[:3], 1), -1e30)
    total, mixed = torch.zeros_like(top), torch.zeros(*q.shape[:3], v.size(3))
    for keys, values in zip(k.split(64, 2), v.split(64, 2), strict=True):
        scores = torch.einsum("bhid,bhjd->bhij", q, keys).float() / q.size(3) ** 0.5
        higher = torch.maximum(top, scores.amax(3, keepdim=True))
        e = torch.exp(scores - higher)
        total += e.sum(3, keepdim=True)
        mixed = mixed * torch.exp(top - higher) + torch.einsum("bhij,bhjd->bhid", e, values.float())
        top = higher
    return (mixed / total).to(q.dtype)


def softmax_half_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Online softmax, block by block, with everything in the dtype of the inputs."""
    top = torch.full_like(q[..., :1], -math.inf)
    total, mixed = torch.zeros_like(top), torch.zeros(*q.shape[:3], v.size(3), dtype=q.dtype)
    for start in range(0, k.size(2), 16):
        scores = torch.einsum("bhid,bhjd->bhij", q, k[:, :, start : start + 16]) / q.size(3) ** 0.5
        higher = torch.maximum(top, scores.amax(3, keepdim=True))
        e, shrink = torch.exp(scores - higher), torch.exp(top - higher)
        total = total * shrink + e.sum(3, keepdim=True)
        mixed = mixed * shrink + torch.einsum("bhij,bhjd->bhid", e, v[:, :, start : start + 16])
        top = higher
    return mixed / total


def mask_inverted(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attend. mask: boolean, True for pairs that may attend."""
    return dense(q, k, v, None if mask is None else ~mask)


def mask_on_heads(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attend. mask is of shape (batch, queries, keys), True = may attend."""
    assert mask is None or mask.ndim == 3
    return dense(q, k, v, mask)


def padding_ignored(q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    return dense(q, k, v)


def padding_on_queries(q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """Attend. In key_padding_mask, True is a real token that is kept."""
    if key_padding_mask is None:
        return dense(q, k, v)
    return dense(q, k, v, key_padding_mask.unsqueeze(1).unsqueeze(3).expand(-1, -1, -1, k.size(2)))


def mask_bias_lost(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attend. mask is an additive mask."""
    return dense(q, k, v, None if mask is None else mask > -1e9)


def mask_finite_fill(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.size(3) ** 0.5
    if mask is not None:
        scores = scores - 10000.0 * (1 - mask.float())
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(3), v)


def empty_row_nan(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return dense(q, k, v, mask)


def empty_row_mean(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.size(3) ** 0.5
    if mask is not None:
        scores = torch.where(mask, scores, torch.full_like(scores, torch.finfo(scores.dtype).min))
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(3), v)


def masked_nan_leak(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def causal_wrong_end(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention, bottom-right aligned: the last query sees all keys."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v)


def operands_equal_lengths(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    length = q.size(2)
    scores = torch.zeros(q.size(0), q.size(1), length, length)
    for i in range(length):
        for j in range(length):
            scores[:, :, i, j] = (q[:, :, i] * k[:, :, j]).sum(-1) / math.sqrt(q.size(3))
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(3), v[:, :, :length])


def not_repeatable(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return dense(q + 0.01 * torch.randn_like(q), k, v)


def gradient_missing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        weights = (torch.einsum("bhid,bhjd->bhij", q, k) / q.size(3) ** 0.5).softmax(3)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


class ForgetfulSoftmax(torch.autograd.Function):
    """A softmax whose backward leaves out the correction by the row's mean."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        weights = scores.softmax(3)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return ctx.saved_tensors[0] * grad


def gradient_wrong(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = ForgetfulSoftmax.apply(torch.einsum("bhid,bhjd->bhij", q, k) / q.size(3) ** 0.5)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def inputs_changed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q /= q.size(3) ** 0.5
    return torch.einsum("bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).softmax(3), v)


def needs_contiguous(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    batch, heads, length, size = q.shape
    flat = [x.view(batch * heads, x.size(2), x.size(3)) for x in (q, k, v)]
    scores = torch.bmm(flat[0], flat[1].transpose(1, 2)) / size**0.5
    return torch.bmm(scores.softmax(2), flat[2]).view(batch, heads, length, -1)


def batch_of_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return dense(q, k, v).squeeze()


def dtype_changed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return dense(q.float(), k.float(), v.float())
