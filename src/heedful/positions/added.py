"""What positions have in common that are added to token vectors."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from heedful.positions.ids import Start, position_ids


class Added(nn.Module):
    """Adds a vector to each token, chosen by its position."""

    tensors: tuple[Tensor, ...] = ()

    def forward(
        self, x: Float[Tensor, "batch length embed"], start: Start = 0
    ) -> Float[Tensor, "batch length embed"]:
        """`x` with its positions added; see `embed`."""
        return self.embed(x, start)

    def embed(
        self, x: Float[Tensor, "batch length embed"], start: Start = 0
    ) -> Float[Tensor, "batch length embed"]:
        """`x` plus the vectors of positions `start`, `start + 1`, ...

        Args:
            x: Token vectors, any floating dtype.
            start: Position of the first token: an int, one per batch item, or all positions (batch, length).

        Returns:
            A tensor like `x`.

        Raises:
            TypeError, ValueError: `start` is not as above, or the size of the vectors does not fit.
            IndexError: A position is outside of a learned table.

        Cost:
            Time and memory of the order of `x`.
        """
        positions = position_ids(start, x.shape[-2], x.device)
        return x + self._vectors(positions, x, start).to(x.dtype)

    def _vectors(self, positions: Int[Tensor, "... length"], x: Tensor, start: Start) -> Tensor:
        """The vectors to add to `x` at these positions, of which `start` is the first."""
        raise NotImplementedError
