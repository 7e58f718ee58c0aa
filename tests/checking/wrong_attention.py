"""The catalogue's mistakes once more, written the way people write attention: one function with einsum.

`make("scale-missing", "mask-added")` gives an attention that makes both mistakes. With "blocked-finite", which is
none, blocked scores become -1e9 instead of minus infinity. Nothing here comes from `heedful.checking`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def make(*wrong: str, causal: bool = False) -> Callable[..., Tensor]:
    """attention(q, k, v, mask=None) for (B, H, L, D) tensors, True = may attend, with these mistakes."""

    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attention. In the mask, True means "may attend"."""
        return compute(set(wrong), q, k, v, mask, causal)

    return attention


def make_causal(*wrong: str) -> Callable[..., Tensor]:
    """The same, always causal, with the last query at the last key."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return compute(set(wrong), q, k, v, None, True)

    return attention


def compute(wrong: set[str], q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    q, k, v = exchanged(wrong, q, k, v)
    size = q.size(3)
    k, v = grouped(wrong, k, q.size(1)), grouped(wrong, v, q.size(1))
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * scale(wrong, q, k, v)
    keep = mask
    if causal:
        past = past_of(wrong, q.size(2), k.size(2))
        keep = past if keep is None else past & keep
    if keep is not None:
        scores = masked(wrong, scores, keep)
    weights = normalized(wrong, scores)
    if "mask-after-softmax" in wrong and keep is not None:
        weights = torch.where(keep, weights, torch.zeros(()))
    if "scale-after-softmax" in wrong:
        weights = weights / size**0.5
    if "operands-query-ignored" in wrong:
        weights = torch.full_like(weights, 1.0) if keep is None else keep.float().expand_as(weights)
        weights = weights / weights.sum(3, keepdim=True)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def exchanged(wrong: set[str], q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if "operands-exchanged" in wrong:
        return k, q, v
    if "operands-key-as-value" in wrong:
        return q, k, k
    if "operands-value-as-key" in wrong:
        return q, v, v
    if "operands-keys-and-values-exchanged" in wrong:
        return q, v, k
    if "operands-query-as-key" in wrong:
        return q, q, v
    return q, k, v


def grouped(wrong: set[str], x: Tensor, heads: int) -> Tensor:
    each = heads // x.size(1)
    if "heads-groups-tiled" in wrong:
        return torch.cat([x] * each, dim=1)
    if "heads-first-only" in wrong:
        return torch.cat([x[:, :1]] * heads, dim=1)
    return torch.stack([x] * each, dim=2).reshape(x.size(0), heads, x.size(2), x.size(3))


def scale(wrong: set[str], q: Tensor, k: Tensor, v: Tensor) -> float:
    size = q.size(3)
    factors = {
        "scale-missing": 1.0,
        "scale-head-dim": 1.0 / size,
        "scale-model-dim": 1.0 / math.sqrt(q.size(1) * size),
        "scale-reciprocal": math.sqrt(size),
        "scale-wrong-axis": 1.0 / math.sqrt(k.size(2)),
        "scale-after-softmax": 1.0,
        "scale-base-two": math.log(2) / math.sqrt(size),
    }
    return next((f for name, f in factors.items() if name in wrong), 1.0 / math.sqrt(size))


def past_of(wrong: set[str], queries: int, keys: int) -> Tensor:
    i = torch.arange(queries).reshape(-1, 1) + keys - queries
    j = torch.arange(keys).reshape(1, -1)
    if "causal-strict" in wrong:
        return j < i
    if "causal-off-by-one" in wrong:
        return j <= i + 1
    if "causal-inverted" in wrong:
        return j > i
    if "causal-inverted-with-self" in wrong:
        return j >= i
    if "causal-block-leak" in wrong:
        return (j <= i) | (i // 4 == j // 4)
    return j <= i


def masked(wrong: set[str], scores: Tensor, keep: Tensor) -> Tensor:
    batch, heads = scores.shape[:2]
    if wrong & {"mask-ignored", "mask-after-softmax"}:
        return scores
    if "mask-added" in wrong:
        return scores + keep
    if "mask-zeroed" in wrong:
        return scores * keep
    if "mask-small-fill" in wrong:
        return torch.where(keep, scores, torch.tensor(-5.0))
    if "mask-times-infinity" in wrong:
        return scores + (1.0 - keep.float()) * -math.inf
    if "mask-tiled" in wrong:
        keep = torch.cat([keep[:, 0]] * heads).reshape(batch, heads, *keep.shape[2:])
    return torch.where(keep, scores, torch.tensor(-1e9 if "blocked-finite" in wrong else -math.inf))


def normalized(wrong: set[str], scores: Tensor) -> Tensor:
    axes = {"softmax-over-queries": 2, "softmax-over-heads": 1, "softmax-over-batch": 0}
    axis = next((a for name, a in axes.items() if name in wrong), 3)
    if "softmax-missing" in wrong:
        return scores
    if "softmax-singleton" in wrong:
        return torch.ones_like(scores)
    if "softmax-over-all" in wrong:
        e = torch.exp(scores - scores.amax((2, 3), keepdim=True))
        return e / e.sum((2, 3), keepdim=True)
    e = torch.exp(scores - scores.amax(axis, keepdim=True))
    weights = e / e.sum(axis, keepdim=True)
    if "softmax-twice" in wrong:
        e = torch.exp(weights)
        weights = e / e.sum(axis, keepdim=True)
    return weights
