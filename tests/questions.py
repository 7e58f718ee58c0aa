"""Every question that weights answer, next to the same question put to the matrix in plain PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import heedful
from cases import Made
from heedful import Weights
from oracle import Problem, textbook


@dataclass
class Matrix:
    """The dense side: weights (B, H, L, S) and what else a formula may need."""

    weights: Tensor
    logits: Tensor
    logsumexp: Tensor
    visible: Tensor
    distance: Tensor
    value: Tensor
    sinks: Tensor | None
    groups: int

    @staticmethod
    def of(made: Made, tensors: dict[str, Tensor], dtype: torch.dtype) -> "Matrix":
        """The matrix of a call, computed in `dtype`, differentiable with respect to `tensors`."""
        tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        found = textbook(Problem(**{**vars(made.problem), **tensors}))
        distance = (torch.arange(made.case.S) - made.case.positions).abs()
        return Matrix(
            found["weights"],
            found["logits"],
            found["logsumexp"],
            made.visible,
            distance,
            tensors["value"],
            tensors.get("sinks"),
            made.case.G,
        )

    @property
    def value_norms(self) -> Tensor:
        """Length of the value row behind each weight, (B, H, 1, S)."""
        return self.value.norm(dim=-1).repeat_interleave(self.weights.shape[1] // self.groups, 1)[:, :, None]

    def per_group(self, x: Tensor) -> Tensor:
        """(B, H, ...) as (B, G, H / G, ...)."""
        return x.unflatten(1, (self.groups, -1))


@dataclass(frozen=True)
class Question:
    """`ask` the lazy weights, or work it out from the `dense` matrix; `reduction` asks in the call."""

    name: str
    ask: Callable[[Weights], Tensor]
    dense: Callable[[Matrix], Tensor]
    reduction: heedful.Reduction | None = None


def entropy(m: Matrix) -> Tensor:
    return -(m.weights * m.weights.masked_fill(m.weights == 0, 1).log()).sum(-1)


def sink_share(m: Matrix) -> Tensor:
    return torch.zeros_like(m.logsumexp) if m.sinks is None else (m.sinks[:, None] - m.logsumexp).exp()


def received(m: Matrix, how: str, per: str, by_value_norm: bool) -> Tensor:
    weights = m.weights * m.value_norms if by_value_norm else m.weights
    grouped = m.per_group(weights)
    seen = m.visible.expand_as(weights)
    if per == "head":
        grouped, seen = weights[:, :, None], seen[:, :, None]
    else:
        seen = m.per_group(seen)
    if how == "max":
        return grouped.amax((2, 3)) if grouped.numel() else grouped.sum((2, 3))
    total = grouped.sum((2, 3))
    return total if how == "sum" else total / seen.sum((2, 3)).clamp(min=1)


def mean_distance(m: Matrix) -> Tensor:
    mass = m.weights.sum(-1)
    return torch.where(mass > 0, (m.weights * m.distance).sum(-1) / mass.masked_fill(mass == 0, 1), 0)


def profile(m: Matrix) -> Tensor:
    shares = [(m.weights * (m.distance == d)).sum((-1, -2)) for d in range(int(m.distance.max()) + 1)]
    seen = m.visible.any(-1).expand(m.weights.shape[:-1]).sum(-1)
    return torch.stack(shares, -1) / seen.clamp(min=1)[..., None]


def pooled(m: Matrix, rows: int, cols: int, how: str, by_value_norm: bool) -> Tensor:
    weights = m.weights * m.value_norms if by_value_norm else m.weights
    L, S = weights.shape[-2:]
    row_of, col_of = torch.arange(L) * rows // L, torch.arange(S) * cols // S
    total = weights.new_zeros(*weights.shape[:2], rows, cols)
    for r in range(rows):
        for c in range(cols):
            block = weights[:, :, row_of == r][..., col_of == c]
            if block.numel():
                mass = block.sum(-1).mean(-1)
                total[..., r, c] = block.amax((-1, -2)) if how == "max" else mass
    return total


def by_key(m: Matrix, groups: Tensor) -> Tensor:
    groups = groups.expand(m.weights.shape[0], -1)
    return torch.stack(
        [(m.weights * (groups == g)[:, None, None]).sum(-1) for g in range(int(groups.max()) + 1)], -1
    )


def numbers(*shape: int) -> Tensor:
    """Numbers to multiply with, the same every time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def questions(B: int, H: int, G: int, L: int, S: int) -> list[Question]:
    """All questions that make sense for these sizes."""
    words, texts = torch.arange(S) // 2 - 1, (torch.arange(S) + torch.arange(B)[:, None]) % 3
    rows, keys = (0, L - 1, L // 2), (S - 1, 0)
    k = min(3, S)
    found = [
        Question("full", lambda w: w.full(), lambda m: m.weights),
        Question("entropy", lambda w: w.entropy(), entropy, heedful.Entropy()),
        Question(
            "max logit per head",
            lambda w: w.max_logit("head"),
            lambda m: m.logits.amax((-1, -2)),
            heedful.MaxLogit("head"),
        ),
        Question("mass", lambda w: w.sum(-1), lambda m: m.weights.sum(-1), heedful.Mass()),
        Question("topk", lambda w: w.topk(k).values, lambda m: m.weights.topk(k).values, heedful.TopK(k)),
        Question("mean distance", lambda w: w.mean_distance(), mean_distance, heedful.MeanDistance()),
        Question("distance", lambda w: w.distance(), profile, heedful.DistanceProfile()),
        Question("by key", lambda w: w.by_key(words), partial(by_key, groups=words), heedful.ByKey(words)),
        Question(
            "by key per item", lambda w: w.by_key(texts), partial(by_key, groups=texts), heedful.ByKey(texts)
        ),
        Question("head mean", lambda w: w.head_mean(), lambda m: m.weights.mean(1)),
        Question(
            "columns",
            lambda w: w.reduce(heedful.KeyColumns(keys))[0],
            lambda m: m.weights[..., list(keys)],
            heedful.KeyColumns(keys),
        ),
        Question(
            "rows",
            lambda w: w.reduce(heedful.QueryRows(rows))[0],
            lambda m: m.weights[..., list(rows), :],
            heedful.QueryRows(rows),
        ),
        Question("value norms", lambda w: w.value_norms(), lambda m: m.value.norm(dim=-1)),
        Question("sink share", lambda w: w.sink_share(), sink_share, heedful.SinkShare()),
    ]
    if S < 50:  # in a long row, float32 and float64 order near ties differently
        found.append(
            Question(
                "topk of all keys",
                lambda w: w.topk(S).values,
                lambda m: m.weights.sort(descending=True).values,
                heedful.TopK(S),
            )
        )
    for how in ("sum", "mean", "max"):
        for per in ("head", "kv_head"):
            for norm in (False, True):
                name = f"received {how} {per}" + " by value norm" * norm
                ask = partial(Weights.received, how=how, per=per, by_value_norm=norm)
                dense = partial(received, how=how, per=per, by_value_norm=norm)
                found.append(Question(name, ask, dense, heedful.Received(how, per, norm)))
    for how in ("mass", "max"):
        for norm in (False, True):
            name = f"pooled {how}" + " by value norm" * norm
            ask = partial(Weights.pooled, rows=2, cols=3, how=how, by_value_norm=norm)
            dense = partial(pooled, rows=2, cols=3, how=how, by_value_norm=norm)
            found.append(Question(name, ask, dense, heedful.Pooled(2, 3, how, norm)))
    for name, shape in {"H": (B, H), "G": (B, G), "1": (B, 1), "no": ()}.items():
        found.append(_product(f"@ x with {name} heads", numbers(*shape, S, 5)))
    for name, shape in {"H": (B, H), "1": (B, 1), "no": ()}.items():
        found.append(_transposed(f".mT @ y with {name} heads", numbers(*shape, L, 5)))
    return [*found, _product("@ vector", numbers(S)), _transposed(".mT @ vector", numbers(L))]


def _product(name: str, x: Tensor) -> Question:
    def dense(m: Matrix) -> Tensor:
        operand = x.to(m.weights.dtype)
        if operand.dim() == 4 and operand.shape[1] == m.groups:
            operand = operand.repeat_interleave(m.weights.shape[1] // m.groups, 1)
        return m.weights @ operand

    return Question(name, lambda w: w @ x.to(w.dtype), dense)


def _transposed(name: str, y: Tensor) -> Question:
    return Question(name, lambda w: w.mT @ y.to(w.dtype), lambda m: m.weights.mT @ y.to(m.weights.dtype))
