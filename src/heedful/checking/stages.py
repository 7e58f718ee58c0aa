"""The right attention, as a short chain of named stages. A mistake is one stage replaced by a wrong one.

Everything here is dense and plain on purpose: it runs on inputs of a few hundred numbers, in float64.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from heedful.checking.chain import Chain


class Linear(NamedTuple):
    """One projection: `x @ weight.T + bias`."""

    weight: Tensor  # (out, in)
    bias: Tensor | None


@dataclass(frozen=True)
class Call:
    """One question put to an attention.

    `query`, `key` and `value` are (B, H, L, D), (B, G, S, D) and (B, G, S, Dv). When `heads` is set they are
    (B, L, E), (B, S, E) and (B, S, E): heads not yet split, and not yet projected if there are `projections`.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    heads: int | None = None
    kv_heads: int | None = None
    projections: dict[str, Linear] | None = None  # "query", "key", "value" and perhaps "output"
    keep: Tensor | None = None  # bool, broadcasts to (B, H, L, S): the mask as it was meant
    padding: Tensor | None = None  # bool (B, S): True = real token
    bias: Tensor | None = None  # added to the scores
    window: "Window | None" = None  # only keys near its own position are seen by a query
    causal: str | None = None  # "start": query 0 stands at key 0; "end": the last query at the last key
    qk_norm: bool = False  # queries and keys are divided by their root mean square
    softcap: float | None = None  # scores are bent by tanh so that they stay below this
    sink: bool = False  # 1 is added to the sum of exponentials
    alibi: str | None = None  # "distance" or "key": slopes times distance, or times the key's index
    rotary: "Rotation | None" = None
    places: tuple[Tensor, Tensor] | None = None  # positions of queries and keys; None: both from 0
    unasked: Tensor | None = (
        None  # bool (B, L): padded queries of self-attention, whose answer is nobody's business
    )
    merged: bool = False  # hand the output back as (B, L, H * Dv) although heads came split


@dataclass(frozen=True)
class Window:
    """How many keys before and after its own position a query sees, and the end from which positions are counted."""

    before: int
    after: int
    align: str  # "start" or "end", as for causality

    def keep(self, queries: int, keys: int) -> Tensor:
        """Who sees whom: bool (L, S)."""
        offset = keys - queries if self.align == "end" else 0
        ahead = torch.arange(keys) - torch.arange(queries)[:, None] - offset
        return (ahead >= -self.before) & (ahead <= self.after)

    def words(self) -> str:
        """What it is, as the report writes it."""
        around = f" and {self.after} after" if self.after else ""
        return f"a query sees its own position, {self.before} before{around}"


@dataclass(frozen=True)
class Rotation:
    """A rotary embedding inside a block: which columns pair up, and how fast they turn."""

    layout: str  # "half" or "interleaved"
    base: float = 10000.0
    sign: int = 1


class Sizes(NamedTuple):
    """What a wrong stage may confuse: every size of the call, after heads are split."""

    batch: int
    heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int
    features: int = 0  # width of what goes into a module; of all heads together, where there is no module


class Result(NamedTuple):
    """What an attention returns. `empty` marks queries that may see nothing, or whose answer doesn't matter."""

    output: Tensor
    weights: Tensor
    empty: Tensor


def project(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Apply the three input projections, where the call has them."""
    if call.projections is None:
        return call.query, call.key, call.value
    sides = {"query": call.query, "key": call.key, "value": call.value}
    query, key, value = (linear(side, call.projections[name]) for name, side in sides.items())
    return query, key, value


def linear(x: Tensor, projection: Linear) -> Tensor:
    """`x @ weight.T + bias`."""
    x = x @ projection.weight.mT
    return x if projection.bias is None else x + projection.bias


def split(x: Tensor, heads: int) -> Tensor:
    """(B, L, H * D) to (B, H, L, D)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """(B, H, L, D) to (B, L, H * D)."""
    return x.transpose(1, 2).flatten(2)


def rotate(
    query: Tensor, key: Tensor, call: Call, kept: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Turn queries and keys by their positions, where the call has a rotation; its tables are kept in this dtype."""
    if call.rotary is None:
        return query, key
    places = call.places or (torch.arange(query.shape[-2]), torch.arange(key.shape[-2]))
    return turn(query, places[0], call.rotary, kept), turn(key, places[1], call.rotary, kept)


def turn(x: Tensor, positions: Tensor, rotation: Rotation, kept: torch.dtype = torch.float64) -> Tensor:
    """Rotate pairs of columns of `x` (..., L, D) by position times the pair's frequency."""
    size = x.shape[-1]
    frequencies = rotation.base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = rotation.sign * positions[:, None].double() * frequencies
    cosine, sine = (table.to(kept).to(x.dtype) for table in (angles.cos(), angles.sin()))
    if rotation.layout == "half":
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cosine - b * sine, b * cosine + a * sine], dim=-1).flatten(-2)


def operands(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value, each used as itself."""
    return query, key, value


def spread(x: Tensor, heads: int) -> Tensor:
    """Serve each key or value head to its group of neighboring query heads: (B, G, S, D) to (B, H, S, D)."""
    return x.repeat_interleave(heads // x.shape[1], dim=1)


def score(query: Tensor, key: Tensor) -> Tensor:
    """All dot products: (B, H, L, S)."""
    return query @ key.mT


def factor(sizes: Sizes) -> float:
    """What the dot products are multiplied by."""
    return sizes.head_dim**-0.5


def bias(call: Call) -> Tensor | None:
    """What the caller adds to the scores."""
    return call.bias


def position_bias(sizes: Sizes, call: Call) -> Tensor | None:
    """ALiBi: each head subtracts its slope times the distance."""
    if call.alibi is None:
        return None
    slopes = 2.0 ** (-8.0 / sizes.heads * torch.arange(1, sizes.heads + 1, dtype=torch.float64))
    keys = torch.arange(sizes.keys)
    if call.alibi == "key":
        return slopes[:, None, None] * keys
    queries = torch.arange(sizes.queries)[:, None] + (
        sizes.keys - sizes.queries if call.causal == "end" else 0
    )
    return -slopes[:, None, None] * (queries - keys).abs()


def given(call: Call) -> Tensor | None:
    """The mask the caller gave: True = may attend."""
    return call.keep


def padded(call: Call, sizes: Sizes) -> Tensor | None:
    """Padding blocks keys: (B, S) to (B, 1, 1, S)."""
    return None if call.padding is None else call.padding[:, None, None, :]


def causal(sizes: Sizes, align: str) -> Tensor:
    """Each query sees the keys up to its own position."""
    offset = sizes.keys - sizes.queries if align == "end" else 0
    return torch.ones(sizes.queries, sizes.keys, dtype=torch.bool).tril(offset)


def restrict(logits: Tensor, keep: Tensor) -> Tensor:
    """Blocked pairs get minus infinity, so that softmax gives them exactly 0."""
    return logits.masked_fill(~keep, -torch.inf)


def normalize(logits: Tensor) -> Tensor:
    """Softmax over the keys. A row with no key at all is 0."""
    weights = logits.softmax(dim=-1)
    return weights.masked_fill((logits == -torch.inf).all(-1, keepdim=True), 0.0)


def finish(weights: Tensor, keep: Tensor | None, sizes: Sizes) -> Tensor:
    """What happens to the weights after softmax: nothing."""
    return weights


def in_turn(
    functions: Sequence[Callable[..., Any]], weights: Tensor, keep: Tensor | None, sizes: Sizes
) -> Tensor:
    """One after the other."""
    for function in functions:
        weights = function(weights, keep, sizes)
    return weights


def mix(weights: Tensor, value: Tensor) -> Tensor:
    """Weighted sum of the values. A weight of 0 shuts out even a NaN."""
    if value.isfinite().all():
        return weights @ value
    terms = weights.unsqueeze(-1) * value.unsqueeze(-3)
    return terms.masked_fill((weights == 0).unsqueeze(-1), 0.0).sum(-2)


def leave(call: Call, context: Tensor) -> Tensor:
    """Apply the output projection, where the call has one."""
    if call.projections is None or "output" not in call.projections:
        return context
    return linear(context, call.projections["output"])


def report(weights: Tensor, logits: Tensor) -> Tensor:
    """The weights as they are handed back: the ones that made the output."""
    return weights


@dataclass(frozen=True)
class Stages(Chain):
    """One function per stage of attention."""

    project: Callable[..., Any] = project
    split: Callable[..., Any] = split
    rotate: Callable[..., Any] = rotate
    operands: Callable[..., Any] = operands
    spread: Callable[..., Any] = spread
    score: Callable[..., Any] = score
    factor: Callable[..., Any] = factor
    bias: Callable[..., Any] = bias
    position_bias: Callable[..., Any] = position_bias
    given: Callable[..., Any] = given
    padded: Callable[..., Any] = padded
    causal: Callable[..., Any] = causal
    restrict: Callable[..., Any] = restrict
    normalize: Callable[..., Any] = normalize
    finish: Callable[..., Any] = finish
    mix: Callable[..., Any] = mix
    merge: Callable[..., Any] = merge
    leave: Callable[..., Any] = leave
    report: Callable[..., Any] = report

    def with_wrong(self, wrong: Mapping[str, Callable[..., Any]]) -> Self | None:
        """As for every chain, but what is to `finish` the weights adds up: after softmax several things can happen."""
        if "finish" not in self.replaced & wrong.keys():
            return super().with_wrong(wrong)
        both = partial(in_turn, (self.finish, wrong["finish"]))
        others = {name: function for name, function in wrong.items() if name != "finish"}
        chain = super().with_wrong(others)
        return None if chain is None else replace(chain, finish=both)


RIGHT = Stages()


def attend(call: Call, stages: Stages = RIGHT) -> Result:
    """Attention from the first stage to the last.

    Returns the output as (B, H, L, Dv), or as (B, L, E) when `call.heads` is set, and the weights (B, H, L, S).
    """
    query, key, value = stages.project(call)
    if call.heads is not None:
        kv_heads = call.kv_heads or call.heads
        query = stages.split(query, call.heads)
        key, value = stages.split(key, kv_heads), stages.split(value, kv_heads)
    query, key = stages.rotate(query, key, call)
    query, key, value = stages.operands(query, key, value)
    key, value = stages.spread(key, query.shape[1]), stages.spread(value, query.shape[1])
    batch, heads, queries, head_dim = query.shape
    features = heads * head_dim if call.projections is None else call.query.shape[-1]
    sizes = Sizes(batch, heads, queries, key.shape[-2], head_dim, value.shape[-1], features)

    if call.qk_norm:
        query, key = (x / x.square().mean(-1, keepdim=True).sqrt() for x in (query, key))
    logits = stages.score(query, key) * stages.factor(sizes)
    if call.softcap is not None:
        logits = call.softcap * (logits / call.softcap).tanh()
    for extra in (stages.bias(call), stages.position_bias(sizes, call)):
        if extra is not None:
            logits = logits + extra.to(logits.dtype)
    keep = visible(call, sizes, stages)
    if keep is not None:
        logits = stages.restrict(logits, keep)
    weights = stages.normalize(logits)
    if call.sink:
        weights = weights * logits.logsumexp(-1, keepdim=True).sigmoid()
    weights = stages.finish(weights, keep, sizes)
    output = stages.mix(weights, value)
    if call.heads is not None or call.merged:
        output = stages.leave(call, stages.merge(output))
    empty = torch.zeros(weights.shape[:-1], dtype=torch.bool) if keep is None else ~keep.any(-1)
    if call.unasked is not None:
        empty = empty | call.unasked[:, None]
    return Result(output, stages.report(weights, logits), empty.expand(weights.shape[:-1]))


def visible(call: Call, sizes: Sizes, stages: Stages) -> Tensor | None:
    """Mask, padding and causality together: True where a pair may attend; None when all may."""
    parts = [stages.given(call), stages.padded(call, sizes)]
    if call.window is not None:
        parts.append(call.window.keep(sizes.queries, sizes.keys))
    if call.causal is not None:
        parts.append(stages.causal(sizes, call.causal))
    keep = None
    for part in parts:
        if part is not None:
            keep = part if keep is None else keep & part
    return keep
