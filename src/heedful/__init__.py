"""heedful: attention for PyTorch that keeps its weights."""

from . import edits, masks, positions
from ._attention import Attention, scaled_dot_product_attention
from ._weights import Weights
from .checking import Diagnosis, assert_attention, check
from .edits import ablate, cut, without_sink
from .masks import Mask
from .nn import KVCache, MultiHeadAttention
from .positions import (
    Alibi,
    Learned,
    RelativeBias,
    Rotary,
    Sinusoidal,
    Sinusoidal2d,
    positional_encoding,
    positional_encoding_2d,
)
from .reductions import (
    ByKey,
    DistanceProfile,
    Entropy,
    KeyColumns,
    LogSumExp,
    Mass,
    MaxLogit,
    MeanDistance,
    Panel,
    Pooled,
    QueryRows,
    Received,
    Reduction,
    SinkShare,
    TopK,
)
from .watching import edit, watch

__version__ = "0.1.0"

__all__ = [
    "Alibi",
    "Attention",
    "ByKey",
    "Diagnosis",
    "DistanceProfile",
    "Entropy",
    "KVCache",
    "KeyColumns",
    "Learned",
    "LogSumExp",
    "Mask",
    "Mass",
    "MaxLogit",
    "MeanDistance",
    "MultiHeadAttention",
    "Panel",
    "Pooled",
    "QueryRows",
    "Received",
    "Reduction",
    "RelativeBias",
    "Rotary",
    "SinkShare",
    "Sinusoidal",
    "Sinusoidal2d",
    "TopK",
    "Weights",
    "ablate",
    "assert_attention",
    "check",
    "cut",
    "edit",
    "edits",
    "masks",
    "positional_encoding",
    "positional_encoding_2d",
    "positions",
    "scaled_dot_product_attention",
    "watch",
    "without_sink",
]
