"""Position numbers of a run of tokens, from where it starts."""

import torch
from jaxtyping import Int
from torch import Tensor

Start = int | Int[Tensor, " batch"] | Int[Tensor, "batch length"]


def position_ids(
    start: Start, length: int, device: torch.device | str | None
) -> Int[Tensor, " length"] | Int[Tensor, "batch length"]:
    """The position numbers of `length` tokens.

    Args:
        start: Position of the first token: an int for all batch items, one integer per item (batch,), or the numbers
            themselves (batch, length), which are returned as they are.
        length: How many tokens.
        device: Where the numbers are made.

    Returns:
        Integers, (length,) where all items start together, else (batch, length).

    Raises:
        TypeError: `start` is neither an int nor an integer tensor.
        ValueError: `start` is a tensor of another shape than (batch,) or (batch, length).

    Cost:
        Time and memory batch * length.
    """
    if isinstance(start, int):
        return torch.arange(start, start + length, device=device)
    check_integers("start", start)
    start = start.to(device)
    if start.ndim == 0:
        return start + torch.arange(length, device=device)
    if start.ndim == 1:
        return start[:, None] + torch.arange(length, device=device)
    if start.ndim == 2 and start.shape[1] == length:
        return start
    raise ValueError(
        f"start must be an int, one integer per batch item (batch,), or all positions (batch, {length}), "
        f"got the shape {tuple(start.shape)}."
    )


def check_integers(name: str, positions: object) -> None:
    """Raise unless `positions` is a tensor of integers: half-precision numbers merge neighbors above 256."""
    if not isinstance(positions, Tensor):
        raise TypeError(f"{name} must be an int or a tensor of integers, got {type(positions).__name__}.")
    if positions.dtype.is_floating_point or positions.dtype.is_complex or positions.dtype == torch.bool:
        raise TypeError(f"{name} must hold integers, got {positions.dtype}. Convert it with {name}.long().")
