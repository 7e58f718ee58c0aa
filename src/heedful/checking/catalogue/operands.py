"""Mistakes in which tensor plays which part."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from heedful.checking.catalogue.entry import Family
from heedful.checking.stages import Call, Sizes, linear, project

family = Family(
    "operands",
    "Query, key and value",
    "A query asks, keys are asked, values answer. Three tensors of the same shape are easily exchanged, and "
    "self-attention on one input hides it.",
)
FORMULA = "softmax(query @ key.mT * scale) @ value"


@family.mistake(
    "operands-exchanged",
    stage="operands",
    says="query and key are exchanged: the scores are transposed, so columns look at rows",
    remedy=FORMULA,
    source="nn.MultiheadAttention's batch and sequence mix-ups in pytorch/pytorch#67651 show the like",
    shows="as many queries as keys (otherwise it raises)",
)
def exchanged(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`key @ query.mT` has the right shape when lengths are equal."""
    return key, query, value


@family.mistake(
    "operands-key-as-value",
    stage="operands",
    says="the keys are averaged instead of the values",
    remedy=FORMULA,
    source="attention over one memory (Luong style) pasted where keys and values differ",
    shows="any input whose value is not its key",
)
def key_as_value(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`weights @ key`."""
    return query, key, key


@family.mistake(
    "operands-value-as-key",
    stage="operands",
    says="queries are compared with the values instead of the keys",
    remedy=FORMULA,
    source="argument order (query, value, key) of keras's layers against (query, key, value)",
    shows="any input whose value is not its key",
)
def value_as_key(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`query @ value.mT`."""
    return query, value, value


@family.mistake(
    "operands-keys-and-values-exchanged",
    stage="operands",
    says="key and value are exchanged: values are compared, keys are averaged",
    remedy=FORMULA,
    source="argument order (query, value, key) of keras's layers against (query, key, value)",
    shows="any input whose value is not its key",
)
def keys_and_values(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keras calls a layer with (query, value, key), torch with (query, key, value)."""
    return query, value, key


@family.mistake(
    "operands-query-as-key",
    stage="operands",
    says="queries are compared with each other instead of with the keys",
    remedy=FORMULA,
    source="self-similarity code reused for attention",
    shows="as many queries as keys",
)
def query_as_key(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`query @ query.mT`."""
    return query, query, value


@family.mistake(
    "operands-query-ignored",
    stage="finish",
    says="the query changes nothing: the output is a plain average of the values",
    remedy=FORMULA,
    source="public graders that pass it; softmax over a length-1 axis, PyTorch-NLP#2",
    shows="any two different queries",
    also=("mean of the values",),
)
def query_ignored(weights: Tensor, keep: Tensor | None, sizes: Sizes) -> Tensor:
    """An average has the right shape, rows that sum to 1, and no attention in it."""
    seen = torch.ones_like(weights) if keep is None else keep.expand_as(weights).to(weights.dtype)
    return seen / seen.sum(-1, keepdim=True).clamp(min=1)


@family.mistake(
    "operands-equal-lengths",
    stage="operands",
    says="it only works for as many queries as keys: {keys} keys for {queries} queries {outcome}",
    remedy="take the number of queries from query.shape[-2] and the number of keys from key.shape[-2]",
    source="cross-attention and decoding with a cache need it; pytorch/pytorch#134756 (lengths reused)",
    shows="different numbers of queries and keys",
    searched=False,
)
def equal_lengths(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The length of the query is used where the length of the key is meant."""
    count = query.shape[-2]
    return query, key[..., :count, :], value[..., :count, :]


def share_matrix(call: Call, used: str, wanted: str) -> tuple[Tensor, Tensor, Tensor]:
    """Project one side with another side's matrix."""
    if call.projections is None:
        return project(call)
    return project(replace(call, projections={**call.projections, wanted: call.projections[used]}))


@family.mistake(
    "operands-wrong-matrix",
    summary="an input is projected with another input's matrix",
    says="the {wanted} is projected with the {used}'s matrix",
    remedy="value = self.v_proj(x): one matrix for each of query, key and value",
    source="shape checks can't see it; pytorch/pytorch#41070 (value width mishandled)",
    shows="any input, once the matrices differ",
)
def wrong_matrix() -> list[dict[str, object]]:
    """Copied lines: `v = self.k_proj(x)`. One matrix is never trained, another serves twice."""
    names = ("query", "key", "value")
    return [
        {
            "project": partial(share_matrix, used=used, wanted=wanted),
            "words": {"used": used, "wanted": wanted},
        }
        for wanted in reversed(names)
        for used in names
        if used != wanted
    ]


@family.mistake(
    "operands-memory-ignored",
    stage="project",
    says="keys and values come from the query's input: the key and value input changes nothing",
    remedy="self.k_proj(key) and self.v_proj(value), not of query",
    source="cross-attention pasted from self-attention code",
    shows="a key input that is not the query input, as many queries as keys",
)
def memory_ignored(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-attention that projects the query three times is self-attention."""
    if call.projections is None:
        return project(call)
    return project(replace(call, key=call.query, value=call.query))


def leave_out(call: Call, side: str) -> tuple[Tensor, Tensor, Tensor]:
    """Project two sides, and use the third as it is."""
    if call.projections is None:
        return project(call)
    inputs = {"query": call.query, "key": call.key, "value": call.value}
    done = {n: x if n == side else linear(x, call.projections[n]) for n, x in inputs.items()}
    return done["query"], done["key"], done["value"]


@family.mistake(
    "operands-not-projected",
    summary="an input is not projected, although there is a matrix for it",
    says="the {side} is not projected, although there is a matrix for it",
    remedy="query = self.q_proj(query), and so for key and value, before heads are split",
    source="an assignment lost on the way: q = self.q_proj(x), then x is used",
    shows="any input, once the matrices aren't the identity",
)
def not_projected() -> list[dict[str, object]]:
    """The projection is computed into one name, and the raw input is used under another."""
    return [
        {"project": partial(leave_out, side=side), "words": {"side": side}}
        for side in ("query", "key", "value")
    ]
