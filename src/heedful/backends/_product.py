"""Products of matrices for panels that nothing records, by the quickest library that torch carries.

`torch.matmul` multiplies float32 with MKL, which leaves half the width of an AMD processor's AVX-512 unused: 110 GF/s
on a core where oneDNN reaches 200 to 250. torch carries oneDNN too, for its convolutions. So every row of x is a pixel,
and every column of y, or row of y.mT, the kernel of a channel.
"""

import math
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from .._checks import transformed

# Of a product of two matrices: the least number of multiplications, and the least size, that repay the longer call.
MULTIPLICATIONS = 2**25
SIZE = 16
# oneDNN keeps code for every combination of sizes that it meets, a thousand of them at a fifth of a megabyte each.
# So it gets none but multiples of this, which meet again; the smallest size, of a head, is the same in every call.
EVEN = 64
# Numbers of an image above which torch takes oneDNN for the gradients of a convolution.
NUMBERS = 20480


def matmul(x: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
    """x @ y: (..., M, K) and (..., K, N), with the same leading dimensions."""
    if not _by_onednn(x, y):
        return torch.matmul(x, y, out=out)
    if out is None and _dense(y) and _gradients_by_onednn(x.shape[-2] * y.shape[-1]):
        return _each(_gradient_of_image, x, y)
    total = x.new_zeros(*x.shape[:-1], y.shape[-1]) if out is None else out.zero_()
    for matrices in zip(*(each.flatten(0, -3) for each in (total, x, y.mT)), strict=True):
        _add_convolution(*matrices)
    return total


def transposed_matmul(x: Tensor, y: Tensor) -> Tensor:
    """x.mT @ y: (..., M, N) and (..., M, K), with the same leading dimensions."""
    y = y.contiguous()
    if not _by_onednn(x.mT, y) or not _gradients_by_onednn(y.shape[-2] * y.shape[-1]):
        return x.mT @ y
    return _each(_gradient_of_kernels, x, y)


def _each(product: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    """The product of every two matrices."""
    pairs = zip(x.flatten(0, -3), y.flatten(0, -3), strict=True)
    products = [product(*matrices) for matrices in pairs]
    stacked = products[0][None] if len(products) == 1 else torch.stack(products)
    return stacked.view(*x.shape[:-2], *stacked.shape[-2:])


def suits(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN is quicker for large products of this kind, and is here."""
    return dtype == torch.float32 and device.type == "cpu" and torch.backends.mkldnn.enabled and _available()


def _by_onednn(x: Tensor, y: Tensor) -> bool:
    sizes = sorted((*x.shape[-2:], y.shape[-1]))
    return (
        math.prod(sizes) >= MULTIPLICATIONS
        and sizes[0] >= SIZE
        and not any(size % EVEN for size in sizes[1:])
        and suits(x.dtype, x.device)
        and type(x) is type(y) is Tensor
        and all(_dense(each) or _dense(each.mT) for each in (x, y))
        and not _followed(x, y)
    )


def _gradients_by_onednn(numbers: int) -> bool:
    """Whether torch takes oneDNN for the gradients of a convolution, of an image of so many numbers."""
    return numbers > NUMBERS and torch.get_num_threads() > 1


def _dense(x: Tensor) -> bool:
    """Whether the numbers of each matrix lie side by side: with gaps, oneDNN takes a thousand times as long."""
    return x.stride(-1) == 1 and x.stride(-2) == x.shape[-1]


def _followed(x: Tensor, y: Tensor) -> bool:
    """Whether anybody follows the operations, and may not know these."""
    return (
        (torch.is_grad_enabled() and (x.requires_grad or y.requires_grad))
        or transformed()
        or torch.jit.is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
    )


def _images(x: Tensor) -> Tensor:
    """A matrix as images, (images, columns, rows, 1): one for each thread, as other operations share out rows."""
    threads = torch.get_num_threads()
    images = threads if len(x) % threads == 0 and len(x) >= 128 * threads else 1
    return x.view(images, -1, 1, x.shape[1]).permute(0, 3, 1, 2)


def _add_convolution(total: Tensor, x: Tensor, kernels: Tensor) -> None:
    """Add x @ kernels.T to `total`."""
    torch.ops.mkldnn._convolution_pointwise_.binary(
        _images(total),
        _images(x.contiguous()),
        kernels[:, :, None, None],
        None,
        padding=[0, 0],
        stride=[1, 1],
        dilation=[1, 1],
        groups=1,
        binary_attr="add",
        alpha=1.0,
        unary_attr=None,
        unary_scalars=[],
        unary_algorithm=None,
    )


def _gradient_of_image(x: Tensor, kernels: Tensor) -> Tensor:
    """x @ kernels, if `x` is the gradient of what they made of an image."""
    found = _gradient(0, x, x.new_empty(len(x), kernels.shape[1]), kernels)
    return found.permute(0, 2, 3, 1).flatten(0, 2)


def _gradient_of_kernels(x: Tensor, y: Tensor) -> Tensor:
    """x.T @ y, if `x` is the gradient of what kernels made of the image `y`."""
    return _gradient(1, x, y, y.new_empty(x.shape[1], y.shape[1]))[:, :, 0, 0]


def _gradient(of: int, x: Tensor, image: Tensor, kernels: Tensor) -> Tensor:
    """The gradient of the image (0) or of the kernels (1); of the other only the shape is read."""
    found = torch.ops.aten.convolution_backward(
        _images(x),
        _images(image),
        kernels[:, :, None, None],
        bias_sizes=None,
        stride=[1, 1],
        padding=[0, 0],
        dilation=[1, 1],
        transposed=False,
        output_padding=[0, 0],
        groups=1,
        output_mask=[of == 0, of == 1, False],
    )
    return found[of]


@cache
def _available() -> bool:
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        and "AuthenticAMD" in _processor()
        and hasattr(getattr(torch.ops.mkldnn, "_convolution_pointwise_", None), "binary")
    )


def _processor() -> str:
    """What the system says about the processor: Linux in a file, Windows by a name."""
    told = Path("/proc/cpuinfo")
    return told.read_text() if told.exists() else platform.processor()
