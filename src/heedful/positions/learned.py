"""A learned table of positions."""

import torch
from torch import Tensor, nn

from heedful._checks import at_least_one
from heedful.positions.added import Added
from heedful.positions.ids import Start


class Learned(Added):
    """Adds one learned vector per position.

    Args:
        max_length: Number of positions in the table.
        embed_dim: Size of each vector.
        device: Where the table is made.
        dtype: Its floating point type.

    Raises:
        ValueError: A size is not positive.

    Cost:
        Memory max_length * embed_dim; a call takes time and memory of the order of its input.

    Source: Gehring and others, Convolutional Sequence to Sequence Learning, 2017, section 3.1.
    """

    def __init__(
        self,
        max_length: int,
        embed_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        at_least_one("max_length", max_length)
        at_least_one("embed_dim", embed_dim)
        self.weight = nn.Parameter(torch.empty(max_length, embed_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table anew, from a normal distribution of deviation 0.02."""
        nn.init.normal_(self.weight, std=0.02)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that gradients must reach."""
        return (self.weight,)

    def _vectors(self, positions: Tensor, x: Tensor, start: Start) -> Tensor:
        max_length, embed_dim = self.weight.shape
        if x.shape[-1] != embed_dim:
            raise ValueError(
                f"x must have vectors of size {embed_dim}, the table's embed_dim; got the shape {tuple(x.shape)}."
            )
        self._check_inside(positions, start, max_length)
        return nn.functional.embedding(positions, self.weight)

    def _check_inside(self, positions: Tensor, start: Start, max_length: int) -> None:
        if positions.numel() == 0 or positions.is_meta:
            return
        if isinstance(start, int):
            low, high = start, start + positions.shape[-1] - 1
        else:
            low, high = int(positions.min()), int(positions.max())
        if low < 0 or high >= max_length:
            raise IndexError(
                f"positions must be from 0 to {max_length - 1}, the rows of a table with max_length={max_length}; "
                f"got {low} to {high}. Make the table longer, or shorten the input."
            )

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"max_length={self.weight.shape[0]}, embed_dim={self.weight.shape[1]}"
