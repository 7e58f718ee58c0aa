"""Products in which a masked pair has no say, even where its key or value holds NaN or infinity.

0 * NaN is NaN, so a plain product lets a masked NaN through. Here numbers that are not finite are taken out of the
product and put back only for the pairs that are visible.
"""

from typing import Any

import torch
from torch import Tensor

from .._checks import answer_dtype


def finite(x: Tensor) -> Tensor:
    """`x` with everything that is not finite replaced by 0."""
    return torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)


def scores(query: Tensor, key: Tensor) -> Tensor:
    """query @ key.mT, in which a key that is not finite spoils its own column only, in gradients too."""
    bad = ~torch.isfinite(key).all(-1)[..., None, :]
    return torch.where(bad, (query @ key.mT).detach(), query @ finite(key).mT)


def weighted_sum(weights: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    """weights @ value, summed over the visible pairs only. What is not finite passes no gradient."""
    total = weights @ finite(value)
    if all_finite(value):
        return total
    excess = (value - finite(value)).detach()
    for j in (excess != 0).any(-1).flatten(0, -2).any(0).nonzero().flatten().tolist():
        share = weights.detach()[..., j, None] * excess[..., None, j, :]
        total = total + torch.where(visible[..., j, None], share, 0)
    return total


def lifted(bias: Tensor) -> Tensor:
    """A bias with the lowest number made a little higher: among the logits of a panel it stands for a masked pair."""
    number = torch.finfo(bias.dtype)
    return torch.where(bias == number.min, bias - (bias * number.eps).detach(), bias)


def all_finite(x: Tensor) -> bool:
    """Whether every number is finite, read through the wrappers of torch.func; True where numbers cannot be read."""
    functorch: Any = torch._C
    while functorch._functorch.is_functorch_wrapped_tensor(x):
        x = functorch._functorch.get_unwrapped(x)
    if torch.compiler.is_compiling() or x.device.type == "meta":
        return True
    x = x.detach()
    # The sum tells at once, unless finite numbers add up to infinity.
    return bool(x.sum(dtype=answer_dtype(x)).isfinite()) or bool(torch.isfinite(x).all())
