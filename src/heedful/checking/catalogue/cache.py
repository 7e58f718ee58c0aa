"""Mistakes in decoding with a key/value cache."""

from functools import partial

from torch import Tensor
from torch.nn.functional import pad

from heedful.checking.catalogue.entry import Family
from heedful.checking.stages import Sizes, causal

family = Family(
    "cache",
    "The cache",
    "Decoding token by token with a cache must give what the whole sequence at once gives. A step's query stands at "
    "the end: it sees every key written so far, its own too, and no other.",
    subject="cache",
)


@family.mistake(
    "cache-stale",
    stage="remembered",
    says="a step sees what earlier steps wrote, but not its own token: the cache is read before it is written",
    remedy="append the new key and value first, then attend to the whole cache",
    source="huggingface/transformers PR#30414 and off-by-one lengths as in flash-linear-attention#766",
    shows="the second token",
)
def stale(step: int, new: int) -> list[int]:
    """The length is the one before the step."""
    return list(range(step or new))


@family.mistake(
    "cache-forgotten",
    stage="remembered",
    says="a step sees only its own tokens: earlier keys are not kept",
    remedy="keys = torch.cat([past_keys, new_keys], dim=-2), and hand the longer ones on",
    source="a cache created and never passed on; nnsight PR#673 shows how quietly wrong positions go",
    shows="the second token",
)
def forgotten(step: int, new: int) -> list[int]:
    """Each step starts from an empty cache."""
    return list(range(step, step + new))


@family.mistake(
    "cache-last-step-only",
    stage="remembered",
    says="a step sees its own tokens and those of the step before: older keys are overwritten",
    remedy="write at position `length`, and move `length` on by the number of new tokens",
    source="VeloxQuant-MLX#389, moeut PR#6 (positions counted from what was kept)",
    shows="the third token",
)
def last_step_only(step: int, new: int) -> list[int]:
    """The place to write is not moved on, or the returned cache holds only the last step."""
    return list(range(max(step - 1, 0), step + new))


def counted_from_zero(step: int) -> int:
    """Every step starts at 0."""
    return 0


def one_back(step: int) -> int:
    """One position too early."""
    return max(step - 1, 0)


def one_on(step: int) -> int:
    """One position too late, except at first."""
    return step + 1 if step else 0


@family.mistake(
    "cache-offset",
    summary="with a cache the new token's position is off",
    says="with a cache the new token's position is {place}: rotations or encodings no longer fit the cached keys",
    remedy="positions = cache_length + arange(new tokens), with the length before the step",
    source="flash-linear-attention#766, VeloxQuant-MLX#389, onnxruntime-genai PR#2354",
    shows="the second token, in a block with positions",
)
def offset() -> list[dict[str, object]]:
    """Cached keys were turned by their own positions; the new query must be turned by its own."""
    return [
        {"position": counted_from_zero, "words": {"place": "0 again"}},
        {"position": one_back, "words": {"place": "one too small"}},
        {"position": one_on, "words": {"place": "one too large"}},
    ]


def padded_to(query: Tensor, key: Tensor, value: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values of zeros behind the written ones, up to this size."""
    count = max(size - key.shape[-2], 0)
    return query, pad(key, (0, 0, 0, count)), pad(value, (0, 0, 0, count))


def causal_then_open(sizes: Sizes, align: str) -> Tensor:
    """Causal among as many keys as queries; everybody sees the slots behind them."""
    written = causal(sizes._replace(keys=sizes.queries), align)
    return pad(written, (0, sizes.keys - sizes.queries), value=True)


def empty_slots(written: int, size: int) -> int:
    """All slots of a cache of this size count, written or not."""
    return max(size - written, 0)


@family.mistake(
    "cache-unwritten",
    says="slots of the cache that nobody has written yet are attended: {slots} slots with a key of zeros",
    remedy="cut the cache to its length, cache[:, :, :length], or mask the rest",
    source="huggingface/transformers PR#30414 (static cache)",
    shows="a preallocated cache that is not full",
)
def unwritten() -> list[dict[str, object]]:
    """A key of zeros has a score of 0, and so a weight. Its value of zeros pulls the output towards 0."""
    sizes = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    stepwise = [{"unwritten": partial(empty_slots, size=size), "words": {"slots": size}} for size in sizes]
    at_once = [
        {"operands": partial(padded_to, size=size), "causal": causal_then_open, "words": {"slots": size}}
        for size in sizes
    ]
    return [*stepwise, *at_once]


@family.mistake(
    "cache-causal-start",
    says="with a cache the causal mask is aligned to the start: a new token sees only the first keys",
    remedy="tril(diagonal=S - L): the last query stands at the last key; for one new token no mask is needed",
    source="torch's is_causal is aligned to the start; ONNX and flash-attn 2.1 to the end",
    shows="the second token",
    stage="align",
)
def causal_start(step: int) -> str:
    """`tril(ones(1, 10))` lets the newest token see key 0 and nothing else."""
    return "start"


@family.mistake(
    "cache-chunk-sees-ahead",
    summary="tokens that are added to a cache together see each other's future",
    says="when several tokens are added to a cache at once they see each other's future",
    remedy="tril(diagonal=S - L) also when there is a cache, whenever more than one token is new",
    source="huggingface/transformers PR#30652 (a path without the causal mask)",
    shows="two new tokens at once, after others",
    stage="align",
)
def chunk_sees_ahead(step: int) -> str | None:
    """`is_causal = cache is None` is right for one new token only."""
    return None if step else "end"


@family.mistake(
    "cache-not-cleared",
    stage="remembered",
    says="a second sequence sees the keys of the first: the answer changes by {difference:.1e}",
    remedy="start every sequence with an empty cache, and offer a way to reset one that is kept inside",
    source="openai/whisper PR#2845 (state that leaks from one call into another)",
    shows="two sequences, one after the other",
    hazard=True,
)
def not_cleared(step: int, new: int) -> list[int]:
    """What is kept inside the module outlives the sequence."""
    return list(range(step + new))
