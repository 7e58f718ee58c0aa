"""heedful: attention for PyTorch that keeps its weights."""

from . import edits, masks
from ._attention import Attention, scaled_dot_product_attention
from ._weights import Weights
from .edits import ablate, cut, without_sink
from .masks import Mask
from .reductions import (
    Entropy,
    LogSumExp,
    Mass,
    MaxLogit,
    MeanDistance,
    Panel,
    Received,
    Reduction,
    TopK,
)

__all__ = [
    "Attention",
    "Entropy",
    "LogSumExp",
    "Mask",
    "Mass",
    "MaxLogit",
    "MeanDistance",
    "Panel",
    "Received",
    "Reduction",
    "TopK",
    "Weights",
    "ablate",
    "cut",
    "edits",
    "masks",
    "scaled_dot_product_attention",
    "without_sink",
]
