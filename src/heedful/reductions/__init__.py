"""Questions to ask of the weights while they pass, in one pass with the output or later.

    output, weights = scaled_dot_product_attention(query, key, value, reduce=(Entropy(), TopK(8)))
    weights.entropy()    # taken in that pass, costs nothing

A reduction of your own subclasses `Reduction`: a frozen dataclass that says what one `Panel` contributes.
"""

from ._heads import DistanceProfile, Pooled, QueryRows, distances
from ._keys import Received, TransposedProduct
from ._protocol import Edit, Panel, Reduction, spread
from ._rows import (
    ByKey,
    Entropy,
    Full,
    KeyColumns,
    LogSumExp,
    Mass,
    MaxLogit,
    MeanDistance,
    SinkShare,
    TopK,
    TopKResult,
)

__all__ = [
    "ByKey",
    "DistanceProfile",
    "Edit",
    "Entropy",
    "Full",
    "KeyColumns",
    "LogSumExp",
    "Mass",
    "MaxLogit",
    "MeanDistance",
    "Panel",
    "Pooled",
    "QueryRows",
    "Received",
    "Reduction",
    "SinkShare",
    "TopK",
    "TopKResult",
    "TransposedProduct",
    "distances",
    "spread",
]
