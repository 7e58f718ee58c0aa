"""The oracle: attention in numpy's long double, every gradient written out by hand. It shares no code with heedful.

`truth` gives each result together with its magnitude: what the same sum would be if no term could cancel another. The
rounding of a result is measured against that, so that a result near 0 is not asked for more than its terms can give.

`baseline` is the textbook's dense program in PyTorch, in the dtype of the call. A backend may err twice as much as the
baseline does, plus one rounding.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray


class Numbers(NamedTuple):
    """A result, and its magnitude."""

    value: Array
    magnitude: Array


@dataclass
class Problem:
    """A call in the plainest form: 4-D tensors, who may look at whom as a matrix."""

    query: Tensor
    key: Tensor
    value: Tensor
    keep: Tensor
    scale: float
    bias: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Everything that has a gradient."""
        found = {
            "query": self.query,
            "key": self.key,
            "value": self.value,
            "bias": self.bias,
            "sinks": self.sinks,
        }
        return {name: tensor for name, tensor in found.items() if tensor is not None}


def precise(x: Tensor) -> Array:
    return x.detach().double().numpy().astype(np.longdouble)


def per_head(x: Array, heads: int) -> Array:
    """Key or value heads repeated, each for its neighbors among the query heads."""
    return np.stack([x[:, h * x.shape[1] // heads] for h in range(heads)], 1) if heads else x[:, :0]


def per_group(x: Array, groups: int) -> Array:
    """The sum over the query heads that share a key head."""
    return x.reshape(x.shape[0], groups, x.shape[1] // max(groups, 1), *x.shape[2:]).sum(2)


def sum_to(x: Array, shape: tuple[int, ...]) -> Array:
    """Sum over the dimensions along which `shape` was broadcast to that of x."""
    shape = (1,) * (x.ndim - len(shape)) + tuple(shape)
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1 and x.shape[axis] != 1)
    return x.sum(axes, keepdims=True).reshape(shape)


def _softmax(logits: Array, sinks: Array | None) -> tuple[Array, Array, Array]:
    """Weights, the sink's weight, and the log of the denominator; a row with nothing in it is 0, 0 and -inf."""
    sink = np.full(logits.shape[:-1], -np.inf, logits.dtype) if sinks is None else sinks[None, :, None]
    sink = np.broadcast_to(sink, logits.shape[:-1])
    peak = np.maximum(logits.max(-1, initial=-np.inf), sink)
    safe = np.where(np.isneginf(peak), 0, peak)
    terms, sink_term = np.exp(logits - safe[..., None]), np.exp(sink - safe)
    total = terms.sum(-1) + sink_term
    divisor = np.where(total == 0, 1, total)
    with np.errstate(divide="ignore"):
        logsumexp = np.log(total) + safe
    return terms / divisor[..., None], sink_term / divisor, logsumexp


def truth(
    problem: Problem, output_grad: Tensor, entropy_grad: Tensor, logsumexp_grad: Tensor
) -> dict[str, Numbers]:
    """Output, weights, logsumexp, entropy, max logit, and the gradient of every tensor (as "query.grad" and so on).

    The three `_grad` are those of a loss with respect to output, entropy and logsumexp.
    """
    query, value = precise(problem.query), precise(problem.value)
    H, G = query.shape[1], value.shape[1]
    key, value = per_head(precise(problem.key), H), per_head(value, H)
    scale, softcap = np.longdouble(problem.scale), problem.softcap
    raw = scale * (query @ key.swapaxes(-1, -2))
    capped = raw if softcap is None else softcap * np.tanh(raw / softcap)
    bias = np.longdouble(0) if problem.bias is None else precise(problem.bias)
    visible = np.broadcast_to(problem.keep.numpy() & ~np.isneginf(bias), raw.shape)
    logits = np.where(visible, capped + bias, -np.inf)
    weights, sink_weight, logsumexp = _softmax(
        logits, None if problem.sinks is None else precise(problem.sinks)
    )

    with np.errstate(divide="ignore"):
        surprise = np.where(weights > 0, -np.log(weights), 0)
    size = np.where(visible, abs(scale) * (abs(query) @ abs(key).swapaxes(-1, -2)) + abs(bias), 0)
    size_of_rows = abs(logsumexp) + (weights * size).sum(-1)
    results = {
        "output": Numbers(weights @ value, weights @ abs(value)),
        "weights": Numbers(weights, weights * (1 + size)),
        "logsumexp": Numbers(logsumexp, size_of_rows),
        "entropy": Numbers((weights * surprise).sum(-1), size_of_rows + (weights * surprise).sum(-1)),
        "max_logit": Numbers(logits.max(-1, initial=-np.inf), size.max(-1, initial=0)),
    }

    d_output, d_entropy, d_logsumexp = map(precise, (output_grad, entropy_grad, logsumexp_grad))
    d_value = weights.swapaxes(-1, -2)
    results["value.grad"] = Numbers(per_group(d_value @ d_output, G), per_group(d_value @ abs(d_output), G))
    d_weights = d_output @ value.swapaxes(-1, -2) + d_entropy[..., None] * (surprise - 1)
    d_weights_size = abs(d_output) @ abs(value).swapaxes(-1, -2) + abs(d_entropy)[..., None] * (
        abs(surprise) + 1
    )
    mean = (weights * d_weights).sum(-1, keepdims=True)
    mean_size = (weights * d_weights_size).sum(-1, keepdims=True)
    d_logits = weights * (d_weights - mean + d_logsumexp[..., None])
    d_logits_size = weights * (d_weights_size + mean_size + abs(d_logsumexp)[..., None])
    if problem.sinks is not None:
        d_sink = (sink_weight * (d_logsumexp - mean[..., 0])).sum((0, 2))
        results["sinks.grad"] = Numbers(
            d_sink, (sink_weight * (abs(d_logsumexp) + mean_size[..., 0])).sum((0, 2))
        )
    if problem.bias is not None:
        shape = problem.bias.shape
        results["bias.grad"] = Numbers(sum_to(d_logits, shape), sum_to(d_logits_size, shape))
    slope = scale if softcap is None else scale * (1 - np.tanh(raw / softcap) ** 2)
    d_raw, d_raw_size = d_logits * slope, d_logits_size * abs(scale)
    results["query.grad"] = Numbers(d_raw @ key, d_raw_size @ abs(key))
    d_raw, d_raw_size = d_raw.swapaxes(-1, -2), d_raw_size.swapaxes(-1, -2)
    results["key.grad"] = Numbers(per_group(d_raw @ query, G), per_group(d_raw_size @ abs(query), G))
    return results


def textbook(problem: Problem) -> dict[str, Tensor]:
    """The dense program, differentiable, computed in float32 (float64 for float64) as every backend is."""
    wide = torch.float64 if problem.query.dtype == torch.float64 else torch.float32
    query, key, value = (x.to(wide) for x in (problem.query, problem.key, problem.value))
    H, G = query.shape[1], key.shape[1]
    key, value = (x.repeat_interleave(H // max(G, 1), 1) for x in (key, value))
    logits = query @ key.mT * problem.scale
    if problem.softcap is not None:
        logits = problem.softcap * torch.tanh(logits / problem.softcap)
    visible = problem.keep
    if problem.bias is not None:
        logits, visible = logits + problem.bias.to(wide), visible & (problem.bias != -torch.inf)
    logits = torch.where(visible, logits, -torch.inf)
    S = logits.shape[-1]
    sinks = torch.tensor([-torch.inf] * H) if problem.sinks is None else problem.sinks
    columns = torch.cat([logits, sinks.to(wide)[:, None, None].expand(*logits.shape[:-1], 1)], -1)
    nobody = (columns == -torch.inf).all(-1)
    columns = columns.masked_fill(nobody[..., None], 0)
    weights = columns.softmax(-1).masked_fill(nobody[..., None], 0)[..., :S]
    return {
        "output": (weights @ value).to(problem.query.dtype),
        "weights": weights,
        "logits": logits,
        "logsumexp": columns.logsumexp(-1).masked_fill(nobody, -torch.inf),
        "entropy": -(weights * weights.masked_fill(weights == 0, 1).log()).sum(-1),
        "max_logit": torch.nn.functional.pad(logits, (0, 1), value=-torch.inf).amax(-1),
    }


def baseline(
    problem: Problem, output_grad: Tensor, entropy_grad: Tensor, logsumexp_grad: Tensor
) -> dict[str, Tensor]:
    """What `truth` gives, from the textbook's program and autograd."""
    tensors = {name: tensor.detach().clone().requires_grad_() for name, tensor in problem.tensors.items()}
    results = textbook(Problem(**{**vars(problem), **tensors}))
    asked = [
        (results["output"], output_grad),
        (results["entropy"], entropy_grad),
        (results["logsumexp"], logsumexp_grad),
    ]
    loss = sum((x * grad).masked_fill(~torch.isfinite(x), 0).double().sum() for x, grad in asked)
    grads = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True)
    for (name, tensor), grad in zip(tensors.items(), grads, strict=True):
        results[f"{name}.grad"] = torch.zeros_like(tensor) if grad is None else grad
    return {name: x.detach() for name, x in results.items()}


def gap(actual: Tensor | Array, expected: Array) -> float:
    """The largest difference; infinities must be the same."""
    actual = precise(actual) if isinstance(actual, Tensor) else actual
    same = actual == expected
    return float(
        np.where(same, 0, abs(np.where(same, 0, actual) - np.where(same, 0, expected))).max(initial=0)
    )


def tolerance(expected: Numbers, baseline: Tensor) -> float:
    """Twice the error of the baseline plus one rounding of the largest value."""
    size = expected.magnitude[np.isfinite(expected.magnitude)].max(initial=0)
    rounding = float(torch.finfo(baseline.dtype).eps * size)
    error = gap(baseline, expected.value)
    computed = torch.finfo(torch.float64 if baseline.dtype == torch.float64 else torch.float32).eps
    assert error <= rounding + 500 * computed * float(size), (
        f"the baseline errs by {error}: oracle or baseline is wrong"
    )
    return 2 * (error + rounding)


def assert_equals_truth(actual: Tensor, expected: Numbers, baseline: Tensor, what: str) -> None:
    """`actual` has the shape and dtype of the baseline, and is no further from the truth than the tolerance allows."""
    assert actual.shape == baseline.shape, (
        f"{what} has shape {tuple(actual.shape)}, not {tuple(baseline.shape)}"
    )
    assert actual.dtype == baseline.dtype, f"{what} is {actual.dtype}, not {baseline.dtype}"
    error, allowed = gap(actual, expected.value), tolerance(expected, baseline)
    assert error <= allowed, f"{what} is off by {error:.3g}, and {allowed:.3g} is allowed"
