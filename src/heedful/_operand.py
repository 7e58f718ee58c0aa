"""What weights are multiplied with: whether it fits, and in one form."""

from typing import TYPE_CHECKING

from torch import Tensor

from ._checks import describe

if TYPE_CHECKING:
    from ._weights import Weights


def operand(weights: "Weights", x: Tensor, what: str, size_name: str, size: int) -> Tensor:
    """The right side of a product as (B, heads, size, F), in the dtype of answers."""
    H, G = weights._call.query.shape[1], weights._call.key.shape[1]
    given = f"{describe(x)} on {x.device}" if isinstance(x, Tensor) else type(x).__name__
    found = x[:, None] if isinstance(x, Tensor) and x.dim() == 1 else x
    here = isinstance(found, Tensor) and found.device == weights.device and not found.is_complex()
    if here and found.dim() == 2 and found.shape[0] == size:
        return found.to(weights.dtype).expand(weights._call.query.shape[0], 1, *found.shape)
    heads = {H, G, 1} if weights._head_shape else {1}
    if here and found.dim() == len(weights.shape):
        shape = found.shape if weights._head_shape else (*found.shape[:-2], 1, *found.shape[-2:])
        if tuple(shape[:-3]) == weights._batch_shape and shape[-3] in heads and shape[-2] == size:
            return found.to(weights.dtype).reshape(weights._call.query.shape[0], *shape[-3:])
    lead = ", ".join(map(str, weights._batch_shape)) + (
        f", {' or '.join(map(str, sorted(heads)))}" * bool(weights._head_shape)
    )
    raise ValueError(
        f"{what} needs real numbers ({size_name},), ({size_name}, F) or ({lead}, {size_name}, F) "
        f"with {size_name} = {size} on {weights.device}, got {given} for weights of shape {tuple(weights.shape)}."
    )
