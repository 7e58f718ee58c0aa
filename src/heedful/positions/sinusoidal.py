"""Sinusoidal positions, in one and two dimensions: the post's function, and modules that add them."""

import torch
from jaxtyping import Float
from torch import Tensor

from heedful._checks import above_zero, at_least_one
from heedful.positions.added import Added
from heedful.positions.ids import Start
from heedful.positions.naming import by_name


def positional_encoding(
    seq_len: int,
    embed_dim: int,
    *,
    offset: int = 0,
    base: float = 10000.0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "seq_len embed_dim"]:
    """Sinusoidal positions: columns 2i and 2i + 1 hold the sine and cosine of `position / base ** (2i / embed_dim)`.

    Row `r` speaks of position `offset + r`. An odd `embed_dim` ends with a sine. Angles are computed in float64
    (float32 on devices without it) and only the sines and cosines are rounded to `dtype`, so that far positions stay
    apart in half precision.

    Args:
        seq_len: Number of positions.
        embed_dim: Size of each position's vector, odd or even.
        offset: Position of the first row, as after `offset` tokens of a cache.
        base: The slowest wave is about `base` times slower than the fastest.
        dtype: Floating point type of the result. None is torch's default.
        device: Where the result is made. None is torch's default.

    Returns:
        A tensor (seq_len, embed_dim) of `dtype`.

    Raises:
        ValueError: `seq_len` is negative, `embed_dim` is not positive, or `base` is not above zero.

    Cost:
        Time and memory seq_len * embed_dim.

    Source: Vaswani and others, Attention Is All You Need, 2017, section 3.5.
    """
    if seq_len < 0:
        raise ValueError(f"seq_len must not be negative, got {seq_len}.")
    _check_sinusoid(embed_dim, base)
    positions = torch.arange(offset, offset + seq_len, device=device)
    return _sinusoids(positions, embed_dim, base).to(dtype or torch.get_default_dtype())


def positional_encoding_2d(
    height: int,
    width: int,
    embed_dim: int,
    *,
    base: float = 10000.0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "height width embed_dim"]:
    """Sinusoidal positions of a grid: the first half of each vector encodes the row, the second half the column.

    Args:
        height: Number of rows, top to bottom.
        width: Number of columns, left to right.
        embed_dim: Size of each cell's vector; even.
        base: As in `positional_encoding`.
        dtype: Floating point type of the result. None is torch's default.
        device: Where the result is made. None is torch's default.

    Returns:
        A tensor (height, width, embed_dim) of `dtype`; `.flatten(0, 1)` fits patches read row by row.

    Raises:
        ValueError: A size is negative, `embed_dim` is odd or not positive, or `base` is not above zero.

    Cost:
        Time and memory height * width * embed_dim.

    Source: as `positional_encoding`, once for each axis.
    """
    if height < 0 or width < 0:
        raise ValueError(f"height and width must not be negative, got {height} and {width}.")
    _check_grid(embed_dim, base)
    rows = torch.arange(height, device=device)[:, None].expand(height, width)
    columns = torch.arange(width, device=device).expand(height, width)
    return _grid_sinusoids(rows, columns, embed_dim, base).to(dtype or torch.get_default_dtype())


@by_name("Write Sinusoidal() or Sinusoidal(base=...); the size of the vectors is read from the tokens.")
class Sinusoidal(Added):
    """Adds `positional_encoding` to token vectors. Nothing is learned or stored, so any length and dtype works.

    Args:
        base: As in `positional_encoding`.

    Raises:
        TypeError: `base` is given without its name.
        ValueError: `base` is not above zero.

    Cost:
        A call takes time and memory of the order of its input.

    Source: Vaswani and others, Attention Is All You Need, 2017, section 3.5.
    """

    def __init__(self, *, base: float = 10000.0) -> None:
        super().__init__()
        _check_sinusoid(1, base)
        self.base = base

    def _vectors(self, positions: Tensor, x: Tensor, start: Start) -> Tensor:
        return _sinusoids(positions, x.shape[-1], self.base)

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"base={self.base}"


class Sinusoidal2d(Added):
    """Adds `positional_encoding_2d` to the tokens of a grid that is read row by row.

    Token `p` stands in row `p // width` and column `p % width`. Vectors must be of even size.

    Args:
        width: Columns of the grid.
        base: As in `positional_encoding`.

    Raises:
        ValueError: `width` is not positive or `base` is not above zero.

    Cost:
        A call takes time and memory of the order of its input.

    Source: as `positional_encoding`, once for each axis.
    """

    def __init__(self, width: int, *, base: float = 10000.0) -> None:
        super().__init__()
        at_least_one("width", width)
        _check_sinusoid(1, base)
        self.width = width
        self.base = base

    def _vectors(self, positions: Tensor, x: Tensor, start: Start) -> Tensor:
        _check_grid(x.shape[-1], self.base)
        return _grid_sinusoids(positions // self.width, positions % self.width, x.shape[-1], self.base)

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"width={self.width}, base={self.base}"


def _check_sinusoid(embed_dim: int, base: float) -> None:
    at_least_one("embed_dim", embed_dim)
    above_zero("base", base)


def _check_grid(embed_dim: int, base: float) -> None:
    _check_sinusoid(embed_dim, base)
    if embed_dim % 2:
        raise ValueError(
            f"embed_dim must be even, half for the row and half for the column; got {embed_dim}."
        )


def _sinusoids(positions: Tensor, embed_dim: int, base: float) -> Tensor:
    dtype = torch.float32 if positions.device.type == "mps" else torch.float64
    exponents = torch.arange(0, embed_dim, 2, dtype=dtype, device=positions.device) / embed_dim
    angles = positions[..., None].to(dtype) / base**exponents
    pairs = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
    return pairs[..., :embed_dim]


def _grid_sinusoids(rows: Tensor, columns: Tensor, embed_dim: int, base: float) -> Tensor:
    half = embed_dim // 2
    return torch.cat((_sinusoids(rows, half, base), _sinusoids(columns, half, base)), dim=-1)
