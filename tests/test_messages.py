"""Bad input: each message names the argument, shows what came and says what to do. Whole messages are compared."""

from typing import Any

import numpy as np
import pytest
import torch

import heedful
from heedful import masks, scaled_dot_product_attention
from heedful.backends import NAMES

B, H, L, S, E = 2, 4, 3, 5, 6


def q(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape or (B, H, L, E), dtype=dtype)


def k(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape or (B, H, S, E), dtype=dtype)


QKV = (q(), k(), k())
CALLS: dict[str, tuple[tuple, dict[str, Any]]] = {
    "a float mask": (QKV, {"mask": torch.zeros(L, S)}),
    "a 3-D mask with 4-D inputs": (QKV, {"mask": torch.ones(B, L, S, dtype=torch.bool)}),
    "a mask of another length": (QKV, {"mask": torch.ones(L, 7, dtype=torch.bool)}),
    "an integer mask with a 2": (QKV, {"mask": torch.full((L, S), 2)}),
    "a padding mask of another batch": (QKV, {"mask": masks.padding(torch.ones(3, S).int())}),
    "a list for a mask": (QKV, {"mask": [1, 2]}),
    "a position beyond all": (QKV, {"query_start": 2**63}),
    "positions beyond all": (QKV, {"query_start": torch.tensor([3, 2**63 - 1])}),
    "complex positions": (QKV, {"query_start": torch.zeros(B, dtype=torch.complex64)}),
    "a number for an edit": (QKV, {"edit": 3}),
    "None for questions": (QKV, {"reduce": None}),
    "None for keys": ((q(), None, k()), {}),
    "lengths beyond the keys": (QKV, {"mask": masks.lengths(torch.tensor([3, 9]))}),
    "an argument of torch's": (QKV, {"is_causal": True}),
    "an argument that is nearly one": (QKV, {"softcaps": 3.0}),
    "complex numbers": ((q(dtype=torch.complex64), k(), k()), {}),
    "a class for a bias": (QKV, {"attn_bias": heedful.Alibi}),
    "a scale that learns": (QKV, {"scale": torch.tensor(0.3, requires_grad=True)}),
    "several scales": (QKV, {"scale": torch.tensor([0.25, 0.5])}),
    "a sparse query": ((q().to_sparse(), k(), k()), {}),
    "another length of values": ((q(), k(), k(B, H, 6, E)), {}),
    "heads that do not divide": ((q(B, 3, L, E), k(B, 2, S, E), k(B, 2, S, E)), {}),
    "another head size": ((q(), k(B, H, S, 7), k()), {}),
    "another batch size": ((q(), k(3, H, S, E), k(3, H, S, E)), {}),
    "another number of dimensions": ((q(B, L, E), k(), k()), {}),
    "another dtype": ((q(), k(dtype=torch.float64), k()), {}),
    "integers": ((q(dtype=torch.int64), k(), k()), {}),
    "a list for a query": (([[1.0]], k(), k()), {}),
    "a bias of the wrong rank": (QKV, {"attn_bias": torch.zeros(B, L, S)}),
    "a bool bias": (QKV, {"attn_bias": torch.ones(L, S, dtype=torch.bool)}),
    "a bias that is none": (QKV, {"attn_bias": "alibi"}),
    "a query_start per item of another batch": (QKV, {"query_start": torch.tensor([1, 2, 3])}),
    "a scale that is infinite": (QKV, {"scale": float("inf")}),
    "a softcap that is not positive": (QKV, {"softcap": 0.0}),
    "sinks of the wrong length": (QKV, {"sinks": torch.zeros(3)}),
    "dropout outside of 0 to 1": (QKV, {"dropout_p": 1.5}),
    "an edit that is none": (QKV, {"edit": [3]}),
    "an edit of another shape": (QKV, {"edit": lambda panel: panel.weights[..., :1]}),
    "an edit of another dtype": (QKV, {"edit": lambda panel: panel.weights.double()}),
    "a maker for an edit": (QKV, {"edit": heedful.without_sink}),
    "a head to ablate that is not there": (QKV, {"edit": heedful.ablate(4)}),
    "a row to cut that is not there": (QKV, {"edit": heedful.cut([1, 3], 0)}),
    "more sinks than keys": (QKV, {"edit": heedful.without_sink(6)}),
    "a reduction that is none": (QKV, {"reduce": ["entropy"]}),
    "a reduction's class": (QKV, {"reduce": [heedful.Entropy]}),
}


def weights() -> heedful.Weights:
    return scaled_dot_product_attention(*QKV).weights


def after_a_change() -> torch.Tensor:
    query, key, value = q().clone(), k(), k()
    _, weights = scaled_dot_product_attention(query, key, value)
    query.add_(1)
    return weights.entropy()


ASKED: dict[str, Any] = {
    "a query changed in place": after_a_change,
    "more keys than there are": lambda: weights().topk(6),
    "no keys at all": lambda: weights().topk(0),
    "another way to receive": lambda: weights().received("median"),
    "a class for a question": lambda: weights().reduce(heedful.Entropy),  # pyright: ignore
    "a word for a bool": lambda: weights().received(by_value_norm="yes"),  # pyright: ignore
    "another word for a bool": lambda: heedful.Pooled(2, 2, by_value_norm=1.5),  # pyright: ignore
    "a list for a projection": lambda: weights().value_norms([1]),  # pyright: ignore
    "a string for a reduction": lambda: weights().reduce("entropy"),
    "a product of another length": lambda: weights() @ torch.zeros(4, 2),
    "a transposed product of another length": lambda: weights().mT @ torch.zeros(4, 2),
    "a key that is not there": lambda: weights()[0, 0, 0, 9],
    "a head that is not there": lambda: weights()[:, 7],
    "too many indices": lambda: weights()[0, 0, 0, 0, 0],
    "a boolean index of another length": lambda: weights()[:, torch.ones(3, dtype=torch.bool)],
    "a float index": lambda: weights()[torch.tensor([0.5])],
    "a uint8 index": lambda: weights()[torch.tensor([1, 0], dtype=torch.uint8)],
    "a name as an index": lambda: weights()["a"],
    "no head to ablate": lambda: heedful.ablate(),
    "a list as padding": lambda: masks.padding([[1, 0]]),
    "groups of another batch": lambda: weights().by_key(torch.zeros(3, 5, dtype=torch.int64)),
    "a list of questions": lambda: weights().reduce([heedful.Entropy()]),
    "groups that do not fit": lambda: weights().by_key(torch.zeros(3, dtype=torch.int64)),
    "a key column that is not there": lambda: weights().reduce(heedful.KeyColumns((9,))),
    "a query row that is not there": lambda: weights().reduce(heedful.QueryRows((9,))),
    "one number of key columns": lambda: heedful.KeyColumns(2),  # type: ignore
    "a float query row": lambda: heedful.QueryRows([0.5]),  # type: ignore
    "a float head to ablate": lambda: heedful.ablate(1.5),
    "a list of heads to ablate": lambda: heedful.ablate([1, 2]),
    "a string of rows to cut": lambda: heedful.cut("all", 0),
    "a float key to cut": lambda: heedful.cut(0, [0.5]),
    "no sinks": lambda: heedful.without_sink(0),
    "a window of 0": lambda: masks.window(0),
    "a negative prefix": lambda: masks.prefix(-1),
    "a float padding": lambda: masks.padding(torch.ones(2, 5)),
    "a padding of another rank": lambda: masks.padding(torch.ones(5, dtype=torch.bool)),
    "one number of lengths": lambda: masks.lengths(torch.tensor(3)),
    "documents by floats": lambda: masks.documents(torch.zeros(5)),
    "documents by bools": lambda: masks.documents(torch.ones(5, dtype=torch.bool)),
    "a dense mask of 3 dimensions": lambda: masks.dense(torch.ones(2, 3, 5, dtype=torch.bool)),
}

MESSAGES: dict[str, tuple[type[Exception], str]] = {
    "a float mask": (
        TypeError,
        "mask must be bool or integer 0/1, got float32 (3, 5). A float mask could mean two "
        "things: write mask=(m != 0) if nonzero means may attend, or attn_bias=m if it is "
        "added to the scores.",
    ),
    "a 3-D mask with 4-D inputs": (
        ValueError,
        "mask is 3-D (2, 3, 5) while query is 4-D, so its first size could mean batch or "
        "heads. Write mask[:, None] for one per batch item, or mask[None] for one per head.",
    ),
    "a mask of another length": (
        ValueError,
        "mask must be (L, S) or (B, H, L, S), or 1 where it repeats, with B=2, H=4, L=3, S=5; got (3, 7).",
    ),
    "an integer mask with a 2": (
        ValueError,
        "mask must hold 0 and 1 only, got values from 2 to 2. 1 = may attend. Numbers to add "
        "to the scores go into attn_bias.",
    ),
    "a padding mask of another batch": (
        ValueError,
        "mask does not fit the call (B=2, H=4, L=3, S=5): padding is (3, 5), expected (B, S) = (2, 5).",
    ),
    "a number for an edit": (
        TypeError,
        "edit must be a function panel -> weights, or a sequence of them, got 3.",
    ),
    "None for questions": (
        TypeError,
        "reduce must hold reductions such as heedful.Entropy() or heedful.TopK(8), got None. "
        "Leave it out to ask nothing.",
    ),
    "None for keys": (TypeError, "key must be a tensor, got NoneType."),
    "positions beyond all": (
        ValueError,
        "query_start must be a position from -2**62 to 2**62, got 9223372036854775807.",
    ),
    "complex positions": (
        ValueError,
        "query_start must be an integer or an integer tensor (B,) with B = 2, got complex64 (2,). "
        "It is the position of the first query among the keys; None puts the last query at the last key.",
    ),
    "a position beyond all": (
        ValueError,
        "query_start must be a position from -2**62 to 2**62, got 9223372036854775808.",
    ),
    "lengths beyond the keys": (
        ValueError,
        "mask does not fit the call (B=2, H=4, L=3, S=5): lengths has one of 9, more than the 5 keys.",
    ),
    "groups of another batch": (
        ValueError,
        "ByKey(): groups has 3 rows, the call has 2 batch items. Give one row per item, or (S,) for all.",
    ),
    "a list of questions": (
        TypeError,
        "reduce() takes reductions such as heedful.Entropy(), got [Entropy()]. Write reduce(*them) for a list.",
    ),
    "a list for a mask": (
        TypeError,
        "mask must be a heedful mask such as masks.causal(), or a bool tensor, True = may attend, got [1, 2].",
    ),
    "an argument of torch's": (
        TypeError,
        "scaled_dot_product_attention() has no argument 'is_causal': write mask=heedful.masks.causal(), and "
        "query_start=0 to count from the first key as torch does.",
    ),
    "a sparse query": (
        TypeError,
        "query must be a dense tensor, got torch.sparse_coo. Use query.to_dense(), or "
        "query.to_padded_tensor(0.0) and masks.padding for a nested tensor.",
    ),
    "another length of values": (
        ValueError,
        "key and value must have the same length: 5 and 6.\n"
        "  query  float32 cpu (2, 4, 3, 6)\n"
        "  key    float32 cpu (2, 4, 5, 6)\n"
        "  value  float32 cpu (2, 4, 6, 6)\n"
        "Each value row belongs to one key row. If a cache is one step behind, append to "
        "both before the call.",
    ),
    "heads that do not divide": (
        ValueError,
        "heads do not divide: query has 3, key 2, value 2.\n"
        "  query  float32 cpu (2, 3, 3, 6)\n"
        "  key    float32 cpu (2, 2, 5, 6)\n"
        "  value  float32 cpu (2, 2, 5, 6)\n"
        "Key and value must have the same number of heads, and query a multiple of it: "
        "neighboring query heads share a key head.",
    ),
    "another head size": (
        ValueError,
        "query and key must have the same last size: 6 and 7.\n"
        "  query  float32 cpu (2, 4, 3, 6)\n"
        "  key    float32 cpu (2, 4, 5, 7)\n"
        "  value  float32 cpu (2, 4, 5, 6)\n"
        "Their dot product is the score; only value may have another last size.",
    ),
    "another batch size": (
        ValueError,
        "query, key and value must have the same leading sizes.\n"
        "  query  float32 cpu (2, 4, 3, 6)\n"
        "  key    float32 cpu (3, 4, 5, 6)\n"
        "  value  float32 cpu (3, 4, 5, 6)\n"
        "Batch sizes are never broadcast; write key.expand(...) if all items share one key.",
    ),
    "another number of dimensions": (
        ValueError,
        "query, key and value must have the same number of dimensions, 3 or more.\n"
        "  query  float32 cpu (2, 3, 6)\n"
        "  key    float32 cpu (2, 4, 5, 6)\n"
        "  value  float32 cpu (2, 4, 5, 6)\n"
        "Shapes are (batch, length, dim), or (batch, heads, length, dim); for one sequence "
        "write query[None].",
    ),
    "another dtype": (
        TypeError,
        "query, key and value must have one dtype.\n"
        "  query  float32 cpu (2, 4, 3, 6)\n"
        "  key    float64 cpu (2, 4, 5, 6)\n"
        "  value  float32 cpu (2, 4, 5, 6)\n"
        "Cast them, for example key.to(query.dtype).",
    ),
    "integers": (TypeError, "query must be floating point, got torch.int64. Use query.float()."),
    "a list for a query": (TypeError, "query must be a tensor, got list. Use torch.as_tensor(query)."),
    "a bias of the wrong rank": (
        ValueError,
        "attn_bias is 3-D (2, 3, 5) while query is 4-D, so its first size could mean batch "
        "or heads. Write attn_bias[:, None] for one per batch item, or attn_bias[None] for "
        "one per head.",
    ),
    "a bool bias": (
        TypeError,
        "attn_bias must be floating point, got bool (3, 5). It is added to the scores; a "
        "bool or 0/1 tensor that says who may attend goes into mask.",
    ),
    "a bias that is none": (
        TypeError,
        "attn_bias must be a tensor, an object with bias(rows, keys) such as heedful.Alibi, "
        "or a tuple of them, got str.",
    ),
    "a query_start per item of another batch": (
        ValueError,
        "query_start must be an integer or an integer tensor (B,) with B = 2, got int64 "
        "(3,). It is the position of the first query among the keys; None puts the last "
        "query at the last key.",
    ),
    "a scale that is infinite": (
        ValueError,
        "scale must be a finite number, got inf. None gives head_dim ** -0.5.",
    ),
    "a softcap that is not positive": (
        ValueError,
        "softcap must be a finite number above zero, got 0.0. Scores become softcap * tanh(scores / "
        "softcap); None leaves them as they are.",
    ),
    "sinks of the wrong length": (
        ValueError,
        "sinks must be a floating-point tensor (H,) with H = 4, one logit per head, got float32 (3,).",
    ),
    "dropout outside of 0 to 1": (
        ValueError,
        "dropout_p must be a number from 0 to 1, got 1.5. It is the share that is dropped.",
    ),
    "an edit that is none": (
        TypeError,
        "edit must be a function panel -> weights, or a sequence of them, got 3.",
    ),
    "an edit of another shape": (
        ValueError,
        "edit must return the weights to use, float32 (2, 4, 3, 5) (batch, heads, rows, "
        "keys), got float32 (2, 4, 3, 1).",
    ),
    "an edit of another dtype": (
        ValueError,
        "edit must return the weights to use, float32 (2, 4, 3, 5) (batch, heads, rows, "
        "keys), got float64 (2, 4, 3, 5).",
    ),
    "a maker for an edit": (
        ValueError,
        "without_sink(): keys must be an integer of at least 1, got a Panel. "
        "Write edit=without_sink() to set the first key aside.",
    ),
    "a head to ablate that is not there": (
        ValueError,
        "edit does not fit the call (B=2, H=4, L=3, S=5): ablate(4) names a head of 4.",
    ),
    "a row to cut that is not there": (
        ValueError,
        "edit does not fit the call (B=2, H=4, L=3, S=5): cut(): rows=[1, 3] does not fit 3 rows: "
        "index 3 is out of bounds for dimension 0 with size 3.",
    ),
    "more sinks than keys": (
        ValueError,
        "edit does not fit the call (B=2, H=4, L=3, S=5): without_sink(6) sets aside more than the 5 keys.",
    ),
    "a reduction that is none": (
        TypeError,
        "reduce must hold reductions such as heedful.Entropy() or heedful.TopK(8), got 'entropy'.",
    ),
    "a reduction's class": (
        TypeError,
        "reduce must hold reductions such as heedful.Entropy() or heedful.TopK(8), got "
        "<class 'heedful.reductions._rows.Entropy'>. Write Entropy().",
    ),
    "a query changed in place": (
        RuntimeError,
        "query was changed in place after the call, so its weights can no longer be "
        "computed. Ask before changing it, take the answer in the call with reduce=, or pass "
        "a clone.",
    ),
    "more keys than there are": (
        ValueError,
        "topk(): k must be at most the number of keys, 5, got 6.",
    ),
    "no keys at all": (ValueError, "TopK(): k must be an integer of at least 1, got 0."),
    "another way to receive": (
        ValueError,
        "Received(): how must be one of 'sum', 'mean', 'max', got 'median'.",
    ),
    "a class for a question": (
        TypeError,
        "reduce() takes reductions such as heedful.Entropy(), got <class 'heedful.reductions._rows.Entropy'>. "
        "Write Entropy().",
    ),
    "a word for a bool": (ValueError, "Received(): by_value_norm must be one of True, False, got 'yes'."),
    "another word for a bool": (ValueError, "Pooled(): by_value_norm must be one of True, False, got 1.5."),
    "a list for a projection": (
        ValueError,
        "out_proj must be (embed_dim, H * Ev) with H * Ev = 24 on cpu, got [1].",
    ),
    "a string for a reduction": (
        TypeError,
        "reduce() takes reductions such as heedful.Entropy(), got 'entropy'.",
    ),
    "a product of another length": (
        ValueError,
        "weights @ x needs real numbers (S,), (S, F) or (2, 1 or 4, S, F) with S = 5 on cpu, "
        "got float32 (4, 2) on cpu for weights of shape (2, 4, 3, 5).",
    ),
    "a transposed product of another length": (
        ValueError,
        "weights.mT @ y needs real numbers (L,), (L, F) or (2, 1 or 4, L, F) with L = 3 on cpu, "
        "got float32 (4, 2) on cpu for weights of shape (2, 4, 3, 5).",
    ),
    "a key that is not there": (
        IndexError,
        "index 9 is out of range: weights of shape (2, 4, 3, 5) have 5 keys (dimension 3).",
    ),
    "a head that is not there": (
        IndexError,
        "index 7 is out of range: weights of shape (2, 4, 3, 5) have 4 heads (dimension 1).",
    ),
    "too many indices": (
        IndexError,
        "too many indices for weights of shape (2, 4, 3, 5): 5 for 4 dimensions.",
    ),
    "a boolean index of another length": (
        IndexError,
        "a boolean index of 3 does not fit: weights of shape (2, 4, 3, 5) have 4 heads (dimension 1).",
    ),
    "a float index": (IndexError, "an index must be integers or booleans, got float32."),
    "a uint8 index": (
        IndexError,
        "a uint8 index could be a mask or positions. Write index.bool() or index.long().",
    ),
    "a name as an index": (IndexError, "weights take integers, slices and index tensors, got 'a'."),
    "no head to ablate": (TypeError, "ablate() needs a head: write ablate(0), or ablate(0, 4) for two."),
    "a list as padding": (
        TypeError,
        "padding(): keep must be a bool or integer 0/1 tensor, got list.",
    ),
    "groups that do not fit": (ValueError, "ByKey(): groups names 3 keys, the call has 5."),
    "a key column that is not there": (IndexError, "KeyColumns(): key 9 is not one of the 5 keys."),
    "a query row that is not there": (IndexError, "QueryRows(): query 9 is not one of the 3 queries."),
    "one number of key columns": (
        TypeError,
        "KeyColumns(): keys must be a sequence of integers such as (0, 5), got 2.",
    ),
    "a float query row": (
        TypeError,
        "QueryRows(): queries must be a sequence of integers such as (0, 5), got [0.5].",
    ),
    "an argument that is nearly one": (
        TypeError,
        "scaled_dot_product_attention() has no argument 'softcaps': did you mean softcap?",
    ),
    "complex numbers": (
        TypeError,
        "query must be real, got torch.complex64: complex scores have no softmax.",
    ),
    "a class for a bias": (
        TypeError,
        "attn_bias got the class Alibi; make one of it, such as heedful.Alibi(num_heads).",
    ),
    "a scale that learns": (
        ValueError,
        "scale must be a number, got a tensor that wants a gradient, which would not reach it. Multiply query by it "
        "and pass scale=1.",
    ),
    "several scales": (
        ValueError,
        "scale must be a finite number, got tensor([0.2500, 0.5000]). None gives head_dim ** -0.5.",
    ),
    "a float head to ablate": (
        TypeError,
        "ablate(): heads must be integers, got 1.5. Write ablate(0, 4) for two heads.",
    ),
    "a list of heads to ablate": (
        TypeError,
        "ablate(): heads must be integers, got [1, 2]. Write ablate(0, 4) for two heads.",
    ),
    "a string of rows to cut": (
        TypeError,
        "cut(): rows must be a number, a slice, a list of numbers, or an integer or bool tensor, got 'all'.",
    ),
    "a float key to cut": (
        TypeError,
        "cut(): keys must be a number, a slice, a list of numbers, or an integer or bool tensor, got [0.5].",
    ),
    "no sinks": (
        ValueError,
        "without_sink(): keys must be an integer of at least 1, got 0. "
        "Write edit=without_sink() to set the first key aside.",
    ),
    "a window of 0": (
        ValueError,
        "window(): left must be None or an integer of at least 1, got 0. left counts the "
        "query itself, so window(1) sees the query's own position only.",
    ),
    "a negative prefix": (ValueError, "prefix(): lengths must not be negative, got -1."),
    "a float padding": (
        TypeError,
        "padding(): keep must be bool or integer 0/1, got float32 (2, 5). Write (m != 0) if nonzero means may "
        "attend.",
    ),
    "a padding of another rank": (
        ValueError,
        "padding(): keep must be (B, S), one row per batch item, got shape (5,).",
    ),
    "one number of lengths": (
        ValueError,
        "lengths(): n must be (B,), one length per batch item, got shape ().",
    ),
    "documents by floats": (
        ValueError,
        "documents(): ids must be an integer tensor (S,) or (B, S), got float32 (5,). Give "
        "every token the number of its document, for example torch.tensor([0, 0, 1, 1, 1, "
        "-1]).",
    ),
    "documents by bools": (
        ValueError,
        "documents(): ids must be an integer tensor (S,) or (B, S), got bool (5,). Give "
        "every token the number of its document, for example torch.tensor([0, 0, 1, 1, 1, "
        "-1]).",
    ),
    "a dense mask of 3 dimensions": (
        ValueError,
        "dense(): keep must be (L, S) or (B, H, L, S), got shape (2, 3, 5). For one mask per "
        "batch item write keep[:, None], for one per head keep[None].",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call(name: str) -> None:
    args, kwargs = CALLS[name]
    kind, message = MESSAGES[name]
    with pytest.raises(kind) as raised:
        scaled_dot_product_attention(*args, **kwargs)
    assert str(raised.value) == message


@pytest.mark.parametrize("name", ASKED)
def test_a_question_an_index_or_a_mask(name: str) -> None:
    kind, message = MESSAGES[name]
    with pytest.raises(kind) as raised:
        ASKED[name]()
    assert str(raised.value) == message


def test_an_unknown_backend() -> None:
    with pytest.raises(ValueError) as raised:
        scaled_dot_product_attention(*QKV, backend="cuda")
    names = ", ".join(map(repr, NAMES))
    assert str(raised.value) == f"backend must be 'auto' or one of {names}, got 'cuda'."


def test_numbers_of_numpy_are_numbers() -> None:
    inputs = torch.randn(3, B, H, L, E).unbind()
    given = scaled_dot_product_attention(*inputs, scale=np.float32(0.5), softcap=np.float32(3))
    assert torch.equal(given.output, scaled_dot_product_attention(*inputs, scale=0.5, softcap=3).output)
    assert heedful.Alibi(np.int64(4)) == heedful.Alibi(4)
    assert heedful.TopK(np.int64(2)) == heedful.TopK(2)
    x = torch.randn(B, H, L, E)
    assert torch.equal(heedful.Rotary(base=np.float32(500)).rotate(x), heedful.Rotary(base=500).rotate(x))
