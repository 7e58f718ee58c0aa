"""x @ y, by the quickest library that torch carries.

`torch.matmul` multiplies float32 with MKL, which leaves half the width of an AMD processor's AVX-512 unused: 112 GF/s
on a core where oneDNN reaches 250. torch carries oneDNN too, as the layers that `torch.compile` builds for the CPU.
"""

import math
from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

# Multiplications in a product of two matrices: a smaller one costs more to call than it gains.
WORTHWHILE = 2**22
WORTHWHILE_IN_PLACE = 2**25


def matmul(x: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
    """(..., M, K) @ (..., K, N), with the same leading dimensions.

    Only `out` keeps a large result from memory that is fetched anew, page by page, with every call.
    """
    if not _by_onednn(x, y, WORTHWHILE if out is None else WORTHWHILE_IN_PLACE):
        return torch.matmul(x, y, out=out)
    if out is None:
        linear = torch.ops.mkldnn._linear_pointwise
        products = [linear(rows, columns, None, "none", [], "") for rows, columns in _matrices(x, y.mT)]
        return (products[0] if len(products) == 1 else torch.stack(products)).view(*x.shape[:-1], y.shape[-1])
    for total, rows, columns in _matrices(out.zero_(), x, y.mT):
        _add_product(total, rows, columns)
    return out


def suits(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN is quicker for large products of this kind, and is here."""
    return dtype == torch.float32 and device.type == "cpu" and torch.backends.mkldnn.enabled and _available()


def _by_onednn(x: Tensor, y: Tensor, worthwhile: int) -> bool:
    return (
        suits(x.dtype, x.device)
        and math.prod(sizes := (*x.shape[-2:], y.shape[-1])) >= worthwhile
        and min(sizes) >= 16
        and type(x) is type(y) is Tensor
        and not (torch.is_grad_enabled() and (x.requires_grad or y.requires_grad))
        and (_dense(y) or _dense(y.mT))
    )


def _matrices(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(x.flatten(0, -3) for x in tensors), strict=True)


def _add_product(total: Tensor, x: Tensor, y: Tensor) -> None:
    """total += x @ y.T, as a convolution: every row of `x` a pixel, every row of `y` the kernel of a channel."""
    add = torch.ops.mkldnn._convolution_pointwise_.binary
    total, x = (image[None, :, None].permute(0, 3, 1, 2) for image in (total, x.contiguous()))
    nothing, once = [0, 0], [1, 1]
    add(total, x, y[:, :, None, None], None, nothing, once, once, 1, "add", 1.0, None, [], None)


def _dense(x: Tensor) -> bool:
    """Whether the numbers of each matrix lie side by side: with gaps, oneDNN takes a thousand times as long."""
    return x.stride(-1) == 1 and x.stride(-2) == x.shape[-1]


@cache
def _available() -> bool:
    return (
        torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_convolution_pointwise_")
    )
