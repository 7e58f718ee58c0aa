"""For every entry of the catalogue, a target that makes this mistake and no other."""

from collections.abc import Callable
from typing import Any

import torch
import wrong_attention
import wrong_cache
import wrong_functions
import wrong_module
import wrong_positions
import wrong_rotary
from torch import Tensor

ATTENTION = [
    "softmax-missing",
    "softmax-twice",
    "softmax-over-queries",
    "softmax-over-heads",
    "softmax-over-batch",
    "softmax-over-all",
    "softmax-singleton",
    "scale-missing",
    "scale-head-dim",
    "scale-model-dim",
    "scale-reciprocal",
    "scale-wrong-axis",
    "scale-after-softmax",
    "scale-base-two",
    "mask-ignored",
    "mask-added",
    "mask-zeroed",
    "mask-after-softmax",
    "mask-small-fill",
    "mask-tiled",
    "mask-times-infinity",
    "heads-groups-tiled",
    "heads-first-only",
    "operands-exchanged",
    "operands-key-as-value",
    "operands-value-as-key",
    "operands-keys-and-values-exchanged",
    "operands-query-as-key",
    "operands-query-ignored",
]
CAUSAL = [
    "causal-strict",
    "causal-off-by-one",
    "causal-inverted",
    "causal-inverted-with-self",
    "causal-block-leak",
]
MODULE = [
    "module-bias-lost",
    "module-output-missing",
    "module-output-twice",
    "operands-wrong-matrix",
    "operands-not-projected",
    "operands-memory-ignored",
    "heads-not-split",
    "heads-size-exchanged",
    "heads-split-reshape",
    "heads-merge-reshape",
    "weights-are-scores",
    "weights-averaged",
    "weights-mismatch",
    "weights-dropped",
    "dropout-in-eval",
    "dropout-missing",
    "dropout-without-rescale",
]
FUNCTIONS = [
    "softmax-overflow",
    "softmax-low-precision",
    "softmax-half-sums",
    "softmax-not-rescaled",
    "mask-inverted",
    "mask-on-heads",
    "padding-ignored",
    "padding-on-queries",
    "mask-bias-lost",
    "mask-finite-fill",
    "empty-row-nan",
    "empty-row-mean",
    "masked-nan-leak",
    "causal-wrong-end",
    "operands-equal-lengths",
    "not-repeatable",
    "gradient-missing",
    "gradient-wrong",
    "inputs-changed",
    "needs-contiguous",
    "batch-of-one",
    "dtype-changed",
]
TABLES = [
    "positions-exponent",
    "positions-column-exponent",
    "positions-base",
    "positions-cosine-missing",
    "positions-half-precision",
    "positions-odd-size",
]
ADDED = ["positions-wrong-axis", "positions-added-twice", "positions-not-added"]
ROTARY = [
    "rotary-exponent",
    "rotary-base",
    "rotary-no-minus",
    "rotary-twice",
    "rotary-wrong-axis",
    "rotary-one-side",
    "rotary-offset",
    "rotary-half-precision",
]
HANDED = [
    "cache-stale",
    "cache-forgotten",
    "cache-last-step-only",
    "cache-offset",
    "cache-causal-start",
    "cache-chunk-sees-ahead",
]


def padding_off_by_one(lengths: Tensor, max_len: int) -> Tensor:
    """A padding mask."""
    return torch.stack([torch.arange(max_len) < int(n) + 1 for n in lengths])


ZOO: dict[str, Callable[[], Any]] = {
    **{n: (lambda n=n: wrong_attention.make(n)) for n in ATTENTION},
    **{n: (lambda n=n: wrong_attention.make_causal(n)) for n in CAUSAL},
    **{n: (lambda n=n: wrong_module.make(n)) for n in MODULE},
    **{n: (lambda n=n: getattr(wrong_functions, n.replace("-", "_"))) for n in FUNCTIONS},
    **{n: (lambda n=n: wrong_positions.make(n)) for n in TABLES},
    **{n: (lambda n=n: wrong_positions.module(n)) for n in ADDED},
    **{n: (lambda n=n: wrong_rotary.make(n)) for n in ROTARY},
    **{n: (lambda n=n: wrong_cache.make(n)) for n in HANDED},
    "causal-ignored": lambda: wrong_functions.causal_attention,
    "padding-off-by-one": lambda: padding_off_by_one,
    "positions-from-one": lambda: wrong_positions.from_one,
    "positions-alibi-sign": lambda: wrong_positions.reversed_alibi,
    "rotary-layout": lambda: wrong_rotary.apply_rope_half,
    "cache-unwritten": lambda: wrong_cache.make("cache-unwritten", base=wrong_cache.Static),
    "cache-not-cleared": lambda: wrong_cache.make(base=wrong_cache.Growing),
}
KINDS = {"padding-off-by-one": "mask", "positions-from-one": "positions"}
