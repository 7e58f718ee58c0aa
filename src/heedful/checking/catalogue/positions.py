"""Mistakes in sinusoidal positional encodings."""

from functools import partial

import torch
from torch import Tensor

from heedful.checking.catalogue.entry import Family
from heedful.checking.stages import Call, Sizes, position_bias
from heedful.checking.tables import TableReading, exponents, positions

family = Family(
    "positions",
    "Positional encoding",
    "Pair i of the columns turns by 10000^(-2i/d) per position; both columns of a pair share that frequency. The "
    "first pair turns once in 6.28 positions, the last hardly at all.",
    subject="positions",
)
FORMULA = "div = exp(arange(0, d, 2) * -(log(10000.0) / d)); pe[:, 0::2] = sin(pos * div); pe[:, 1::2] = cos(pos * div)"


def stretched(width: int, spacing: str, by: float) -> Tensor:
    """All exponents times a number."""
    return exponents(width, spacing) * by


@family.mistake(
    "positions-exponent",
    summary="the exponent is a multiple of what it should be",
    says="the exponent is {times} what it should be: the wavelengths end at {longest:.0f} instead of {right:.0f}",
    remedy=FORMULA + " (arange(0, d, 2) already is 2i)",
    source="Informer2020#224, DeepCTR#379 (the exponent and its factor 2)",
    shows="four columns or more",
)
def exponent() -> list[dict[str, object]]:
    """`i / d` where i counts pairs forgets the factor 2; `2 * i / d` where i already runs over 0, 2, 4 has it twice."""
    return [
        {"exponents": partial(stretched, by=by), "words": {"times": words, "by": by}}
        for by, words in ((0.5, "half of"), (2.0, "twice"))
    ]


def own_columns(angles: Tensor, width: int, reading: TableReading, by: float) -> Tensor:
    """Every column has a frequency of its own."""
    turns = angles[:, :1] * 10000.0 ** (-by * torch.arange(width, dtype=torch.float64) / width)
    even = torch.arange(width) % 2 == 0
    return torch.where(even, turns.sin(), turns.cos())


@family.mistake(
    "positions-column-exponent",
    says="every column has its own frequency: the sine and cosine of a pair turn at different speeds",
    remedy=FORMULA,
    source="DeepCTR#379",
    shows="two columns or more",
)
def column_exponent() -> list[dict[str, object]]:
    """Then a shift in position is no longer a rotation, which was the reason for pairs."""
    return [{"columns": partial(own_columns, by=by)} for by in (2.0, 1.0)]


def other_base(exponents: Tensor, base: float, instead: float) -> Tensor:
    """Powers of another number."""
    return instead**-exponents


@family.mistake(
    "positions-base",
    summary="the base is not 10000",
    says="the base is {instead:g}; expected 10000",
    remedy="10000 ** (-2i / d), unless the base is a parameter that the caller chooses",
    source="Vaswani et al., Attention is all you need, section 3.5, against constants in copies of it",
    shows="four columns or more",
)
def base() -> list[dict[str, object]]:
    """A zero too few. Positions far apart then look alike earlier."""
    return [
        {"frequencies": partial(other_base, instead=instead), "words": {"instead": instead}}
        for instead in (1000.0, 100.0, 100000.0, 2.718281828459045, 10.0, 1000000.0)
    ]


@family.mistake(
    "positions-cosine-missing",
    stage="columns",
    says="there are sines in all columns and no cosines: position 0 is all zeros",
    remedy=FORMULA,
    source="the formula's second line forgotten; columns mixed up as in DeepCTR#379",
    shows="two columns or more",
)
def cosine_missing(angles: Tensor, width: int, reading: TableReading) -> Tensor:
    """With sines alone two positions can look the same, and no rotation leads from one to the next."""
    waves = [angles.sin(), angles.sin()]
    joined = torch.cat(waves, -1) if reading.layout == "halves" else torch.stack(waves, -1).flatten(-2)
    return joined[..., :width]


@family.mistake(
    "positions-wrong-axis",
    summary="the table is indexed along the batch instead of the sequence",
    stage="positions",
    says="the table is indexed along {axis}: {effect}",
    remedy="x + pe[: x.size(1)] for (batch, length, features), pe[: x.size(0), None] for (length, batch, features)",
    source="DiffPoseTalk#20, influenza_transformer#9, GETNext#2",
    shows="two samples and two tokens or more",
    searched=False,
)
def wrong_axis(length: int, start: int) -> Tensor:
    """A table made for (length, batch, features) added to (batch, length, features): the sample is the position."""
    return torch.zeros(length, dtype=torch.float64)


@family.mistake(
    "positions-from-one",
    summary="positions start elsewhere than the target says",
    says="positions start at {actual}, but {claim} says {claimed}",
    remedy="torch.arange(0, length)",
    source="flash-linear-attention#766 (positions off by one)",
    shows="any input; only called a mistake when the target says otherwise",
    searched=False,
)
def from_one() -> list[dict[str, object]]:
    """A shifted start does no harm by itself; it does when another part counts from 0."""
    return [{"positions": lambda length, start: positions(length, start + 1)}]


@family.mistake(
    "positions-added-twice",
    stage="add",
    says="the encoding is added twice",
    remedy="return x + pe, and don't add it in the caller too",
    source="doubled positions: one of huggingface/transformers#25104, vllm#41236, mlx-lm PR#1553",
    shows="any input",
)
def twice(x: Tensor, table: Tensor) -> Tensor:
    """Once in the embedding and once in the layer, or `x += pe` on a tensor that is then added again."""
    return x + 2 * table


@family.mistake(
    "positions-not-added",
    stage="add",
    says="nothing is added: the input comes back as it was",
    remedy="return x + pe[: x.size(1)]",
    source="a result not assigned: x + pe on a line of its own",
    shows="any input",
)
def not_added(x: Tensor, table: Tensor) -> Tensor:
    """Attention has no notion of order without it."""
    return x


@family.mistake(
    "positions-half-precision",
    stage="angles",
    says="angles are computed in half precision: at position {position} a wave is off by {error:.2f}",
    remedy="compute positions, frequencies and angles in float32, and cast the finished table",
    source="EleutherAI/gpt-neox#1003, huggingface/transformers PR#29285, Modalities PR#462",
    shows="positions above 256 (bfloat16) or 2048 (float16)",
    searched=False,
)
def half_precision(positions: Tensor, frequencies: Tensor) -> Tensor:
    """bfloat16 has no 257, and a rounding of 1 in 500 positions is a radian in the fastest wave."""
    return (positions.bfloat16()[:, None] * frequencies.bfloat16()).double()


@family.mistake(
    "positions-odd-size",
    summary="an odd size raises, or changes the waves",
    stage="columns",
    says="an odd size {outcome}",
    remedy="pe[:, 1::2] = cos(pos * div[: d // 2]) leaves out the last cosine",
    source="BERT-pytorch#78, Informer2020#224, pyaptamer#526",
    shows="an odd number of columns",
    hazard=True,
)
def odd_size(angles: Tensor, width: int, reading: TableReading) -> Tensor:
    """There is one sine more than cosines."""
    table = torch.zeros(angles.shape[0], width, dtype=angles.dtype)
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
    return table


@family.mistake(
    "positions-alibi-sign",
    stage="position_bias",
    says="the ALiBi bias has the wrong sign: far keys are favored",
    remedy="-slope * (i - j)",
    source="meta-pytorch/attention-gym PR#86",
    shows="two keys or more",
    subject="attention",
)
def alibi_sign(sizes: Sizes, call: Call) -> Tensor | None:
    """The bias must grow more negative with distance."""
    bias = position_bias(sizes, call)
    return None if bias is None else -bias
