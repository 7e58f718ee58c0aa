"""Mistakes in rotary position embeddings."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from heedful.checking.catalogue.entry import Family
from heedful.checking.tables import exponents, turn

family = Family(
    "rotary",
    "Rotary embedding",
    "Pairs of columns of query and key turn by position times 10000^(-2i/D). A rotation keeps lengths, so a score "
    "depends only on the distance between query and key.",
    subject="rotary",
)


@family.mistake(
    "rotary-layout",
    summary="columns pair up otherwise than the target says",
    says="columns pair up {actual}, but {claim} says {claimed}",
    remedy="use the layout of the weights: half (rotate_half) for Hugging Face's Llama, interleaved for Meta's and "
    "GGUF; a fixed permutation of the rows of q_proj and k_proj turns one into the other",
    source="huggingface/transformers#25199, LLMs-from-scratch#838",
    shows="position 1 and later; position 0 is the identity in both",
    searched=False,
)
def layout() -> list[dict[str, object]]:
    """Both are right for a model trained with them.

    With weights of the other kind the first token is right and the rest is garbage.
    """
    return [{"exponents": exponents}]


def stretched(width: int, spacing: str, by: float) -> Tensor:
    """All exponents times a number."""
    return exponents(width, spacing) * by


@family.mistake(
    "rotary-exponent",
    summary="the exponent is a multiple of what it should be",
    says="the exponent is {times} what it should be",
    remedy="base ** (-torch.arange(0, D, 2) / D)",
    source="huggingface/transformers#25104, #38224 (details of the frequencies)",
    shows="position 1 and later, D of four or more",
)
def exponent() -> list[dict[str, object]]:
    """`arange(D / 2) / D` forgets the factor 2, `2 * arange(0, D, 2) / D` has it twice."""
    return [
        {"exponents": partial(stretched, by=by), "words": {"times": words}}
        for by, words in ((0.5, "half of"), (2.0, "twice"))
    ]


def other_base(exponents: Tensor, base: float, instead: float) -> Tensor:
    """Powers of another number."""
    return instead**-exponents


@family.mistake(
    "rotary-base",
    summary="the base is not 10000",
    says="the base is {instead:g}; expected 10000",
    remedy="10000, unless the base is a parameter that the caller chooses (SmolLM2 has 1e5, Llama 3 has 5e5)",
    source="Su et al., RoFormer, section 3.2.2, against constants in copies of it",
    shows="position 1 and later, D of four or more",
)
def base() -> list[dict[str, object]]:
    """A model read with another base than it was trained with gets worse with every position."""
    return [
        {"frequencies": partial(other_base, instead=instead), "words": {"instead": instead}}
        for instead in (1000.0, 100.0, 100000.0, 500000.0, 1000000.0)
    ]


@family.mistake(
    "rotary-no-minus",
    stage="turn",
    says="the minus sign is missing: a * cos + b * sin for both columns is no rotation, and lengths change",
    remedy="(a * cos - b * sin, b * cos + a * sin)",
    source="rotate_half without its minus; layout mix-ups as in LLMs-from-scratch#838",
    shows="position 1 and later",
)
def no_minus(a: Tensor, b: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
    """A pair's length, and with it the score, then depends on absolute position."""
    return a * angles.cos() + b * angles.sin(), b * angles.cos() + a * angles.sin()


@family.mistake(
    "rotary-twice",
    stage="turn",
    says="everything is turned twice: by 2 * position",
    remedy="rotate once, before the keys go into the cache or after they come out",
    source="doubled positions: one of huggingface/transformers#25104, vllm#41236, mlx-lm PR#1553",
    shows="position 1 and later",
)
def applied_twice(a: Tensor, b: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
    """In the cache and again after it, or by the caller and by the callee."""
    return turn(a, b, 2 * angles)


@family.mistake(
    "rotary-wrong-axis",
    stage="places",
    says="positions are counted along the heads, not along the sequence: all tokens of a head turn by the same angle",
    remedy="arange(x.shape[-2]) for (B, H, L, D); arange(x.shape[1]) for (B, L, H, D)",
    source="huggingface/transformers#38224, vllm#41236 (length taken from the head axis)",
    shows="two heads and two tokens",
)
def wrong_axis(x: Tensor, start: int) -> Tensor:
    """(B, H, L, D) handed to code for (B, L, H, D), or the other way round."""
    return torch.arange(start, start + x.shape[1], dtype=torch.float64)[:, None, None]


def query_only(rotate: Callable[[Tensor], Tensor], query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Keys stay."""
    return rotate(query), key


def key_only(rotate: Callable[[Tensor], Tensor], query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Queries stay."""
    return query, rotate(key)


@family.mistake(
    "rotary-one-side",
    summary="only the query, or only the key, is turned",
    says="only the {side} is turned",
    remedy="turn query and key, both",
    source="keys cached before rotation and never turned: flash-linear-attention#766 and its kind",
    shows="position 1 and later",
)
def one_side() -> list[dict[str, object]]:
    """Scores then depend on the absolute position of one side."""
    return [
        {"apply": query_only, "words": {"side": "query"}},
        {"apply": key_only, "words": {"side": "key"}},
    ]


def one_on(rotate: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Turn each token by the position after its own."""
    return rotate(torch.cat([x[..., :1, :], x], -2))[..., 1:, :]


def query_ahead(rotate: Callable[[Tensor], Tensor], query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Queries count from 1."""
    return one_on(rotate, query), rotate(key)


def key_ahead(rotate: Callable[[Tensor], Tensor], query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Keys count from 1."""
    return rotate(query), one_on(rotate, key)


@family.mistake(
    "rotary-offset",
    summary="query or key is counted from one position later",
    says="the {side} is counted from one position later: distances are off by one",
    remedy="one position for a token, in its query and in its key",
    source="flash-linear-attention#766, onnxruntime-genai PR#2354 (offset with a cache)",
    shows="any position",
)
def offset() -> list[dict[str, object]]:
    """A shift of both is harmless, since only distances matter; a shift of one is not."""
    return [
        {"apply": query_ahead, "words": {"side": "query"}},
        {"apply": key_ahead, "words": {"side": "key"}},
    ]


@family.mistake(
    "rotary-half-precision",
    stage="turn",
    says="angles are computed in half precision: at position {position} the result is off by {error:.2f}",
    remedy="compute positions, frequencies, cosines and sines in float32, and cast the finished tables",
    source="EleutherAI/gpt-neox#1003, huggingface/transformers PR#29285, sglang-jax#1472",
    shows="positions above 256 (bfloat16) or 2048 (float16)",
    searched=False,
)
def half_precision(a: Tensor, b: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
    """bfloat16 has no 257: tokens 256 and 257 get the same rotation."""
    return turn(a, b, angles.bfloat16().double())
