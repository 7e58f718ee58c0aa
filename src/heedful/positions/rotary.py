"""Rotary positions: pairs of entries of queries and keys are turned, so that scores depend on distances."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heedful._checks import INTEGERS, above_zero
from heedful.positions.ids import check_integers
from heedful.positions.naming import by_name
from heedful.positions.parameters import scaling_from
from heedful.positions.scaling import Scaling, inverse_frequencies


@by_name("Write Rotary() or Rotary(base=...); the size of the heads is read from queries and keys.")
@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Turns each pair of entries of a query or key by `position * base ** (-2i / rotary_dim)`.

    Nothing is stored: sines and cosines are made when needed, in float32 (float64 for float64), so no cast of a module
    reaches them, and any length, device and dtype works. The size of the heads is read from queries and keys.

    Args:
        base: The slowest pair turns about `base` times slower than the fastest.
        layout: Which entries form pair i of n: "half", i and i + n (Llama, GPT-NeoX and most of Hugging Face), or
            "interleaved", 2i and 2i + 1 (the paper, GPT-J, GGUF files of Llama). Weights made for one layout work in
            the other once the rows of the query and key projections are reordered within each head.
        rotary_dim: How many leading entries are turned, an even number; the rest stays. None: all.
        scaling: A rule for longer sequences, for example `LinearScaling(4)`.

    Raises:
        TypeError, ValueError: An argument is not as above, or is given without its name.

    Cost:
        A call takes time and memory of the order of its input.

    Source: Su and others, RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021.
    """

    base: float = 10000.0
    layout: Literal["half", "interleaved"] = "half"
    rotary_dim: int | None = None
    scaling: Scaling | None = None

    tensors: ClassVar[tuple[Tensor, ...]] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.base, Tensor):  # one that learns, say
            above_zero("base", self.base)
        if self.layout not in ("half", "interleaved"):
            raise ValueError(f"layout must be 'half' or 'interleaved', got {self.layout!r}.")
        dim = self.rotary_dim
        if dim is not None and (not isinstance(dim, INTEGERS) or dim < 2 or dim % 2):
            raise ValueError(
                f"rotary_dim must be even and at least 2, since entries turn in pairs; got {dim!r}."
            )
        if self.scaling is not None and not isinstance(self.scaling, Scaling):
            raise TypeError(f"scaling must be a Scaling such as LinearScaling(4), got {self.scaling!r}.")

    @classmethod
    def from_parameters(
        cls,
        parameters: Mapping[str, Any],
        head_dim: int,
        *,
        max_length: int | None = None,
        layout: Literal["half", "interleaved"] = "half",
    ) -> "Rotary":
        """The rotary position that a transformers configuration describes.

        Args:
            parameters: Its `rope_parameters`: "rope_theta", "rope_type", "partial_rotary_factor", the type's numbers.
            head_dim: Size of the model's heads.
            max_length: Its `max_position_embeddings`; "dynamic" needs it, "yarn" and "longrope" without a factor too.
            layout: As in `Rotary`; transformers' models use "half" with few exceptions.

        Returns:
            A `Rotary`.

        Raises:
            ValueError: The type is not known, or a number it needs is missing.
        """
        scaling = scaling_from(parameters, max_length)
        partial = parameters.get("partial_rotary_factor") or 1.0
        whole = partial == 1.0 or parameters.get("rope_type") == "proportional"
        rotary_dim = None if whole else int(head_dim * partial)
        base = parameters.get("rope_theta") or cls.base
        return cls(base=base, layout=layout, rotary_dim=rotary_dim, scaling=scaling)

    @property
    def needs_length(self) -> bool:
        """Whether angles depend on the length of the sequence, so that a cache must hold keys unturned."""
        return self.scaling is not None and self.scaling.needs_length

    def rotate(
        self,
        x: Float[Tensor, "*batch length head_dim"],
        positions: int | Int[Tensor, "*#items length"] = 0,
        lengths: int | Int[Tensor, " items"] | None = None,
    ) -> Float[Tensor, "*batch length head_dim"]:
        """`x` turned by its positions. The turn is computed in float32 or better, and rounded once, to `x`'s dtype.

        Args:
            x: Queries or keys, of shape (..., length, head_dim).
            positions: Position of the first, or the positions of all, (length,) or (batch, length).
            lengths: Length of the whole sequence, one for all or one per batch item, for scalings that need it.
                None: the highest position of each item plus one.

        Returns:
            A tensor like `x`.

        Raises:
            TypeError: `positions` are not integers.
            ValueError: `head_dim` is odd or below `rotary_dim`, or `positions` have another shape.

        Cost:
            Time and memory of the order of `x`.
        """
        length, head_dim = x.shape[-2:]
        positions = self._positions(x, positions)
        if length == 0:
            return x
        cos, sin = self.tables(positions, head_dim, torch.promote_types(x.dtype, torch.float32), lengths)
        if cos.ndim == 3:
            cos, sin = (table[(slice(None), *[None] * (x.ndim - 3))] for table in (cos, sin))
        turned_dim = 2 * cos.shape[-1]
        turned = self._turn(x[..., :turned_dim], cos, sin).to(x.dtype)
        return turned if turned_dim == head_dim else torch.cat((turned, x[..., turned_dim:]), dim=-1)

    def tables(
        self,
        positions: Int[Tensor, "*items length"],
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        lengths: int | Int[Tensor, " items"] | None = None,
    ) -> tuple[Float[Tensor, "*items length pairs"], Float[Tensor, "*items length pairs"]]:
        """Cosines and sines of each pair's angle, times the scaling's magnitude.

        Args:
            positions: Integer positions, (..., length), at least one.
            head_dim: Size of the heads.
            dtype: What is computed in, float32 or float64.
            lengths: As in `rotate`.

        Returns:
            Two tensors (..., length, rotary_dim / 2).

        Raises:
            ValueError: `head_dim` is odd or below `rotary_dim`.

        Cost:
            Time and memory positions * rotary_dim.
        """
        dim = self._turned_dim(head_dim)
        if self.scaling is None:
            return _cos_sin(positions, inverse_frequencies(dim, self.base, dtype, positions.device), 1.0)
        if lengths is None:
            lengths = positions.amax(-1) + 1
        lengths = torch.as_tensor(lengths, device=positions.device)[..., None]
        frequencies = self.scaling.frequencies(dim, self.base, lengths, dtype)
        if self.needs_length:
            frequencies = frequencies[..., None, :]
        return _cos_sin(positions, frequencies, self.scaling.magnitude)

    def _turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x.to(cos.dtype)
        if self.layout == "half":
            first, second = x.chunk(2, dim=-1)
            return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        first, second = x[..., 0::2], x[..., 1::2]
        return torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)

    def _turned_dim(self, head_dim: int) -> int:
        if self.rotary_dim is None and head_dim % 2:
            raise ValueError(
                f"head_dim must be even, since entries turn in pairs; got {head_dim}. "
                f"Turn all but the last with Rotary(rotary_dim={head_dim - 1})."
            )
        if self.rotary_dim is not None and self.rotary_dim > head_dim:
            raise ValueError(f"rotary_dim must be at most head_dim; got {self.rotary_dim} and {head_dim}.")
        return head_dim if self.rotary_dim is None else self.rotary_dim

    def _positions(self, x: Tensor, positions: int | Tensor) -> Tensor:
        length = x.shape[-2]
        if isinstance(positions, int):
            return torch.arange(positions, positions + length, device=x.device)
        check_integers("positions", positions)
        per_item = positions.ndim == 2 and x.ndim >= 3 and positions.shape[0] in (1, x.shape[0])
        if positions.shape[-1:] != (length,) or not (positions.ndim == 1 or per_item):
            raise ValueError(
                f"positions must be an int, (length,) or (batch, length) for x {tuple(x.shape)}, "
                f"whose length is {length}; got {tuple(positions.shape)}."
            )
        return positions.to(x.device)


def _cos_sin(positions: Tensor, frequencies: Tensor, magnitude: float) -> tuple[Tensor, Tensor]:
    angles = positions[..., None].to(frequencies.dtype) * frequencies
    return angles.cos() * magnitude, angles.sin() * magnitude
