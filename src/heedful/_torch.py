"""What lets torch functions and operators work on `Weights`."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

TOO_LARGE = 2**28
OPERATORS = (
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__"),
    *("__pow__", "__neg__", "__abs__", "__array__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
)
INSTEAD = {
    "topk": "weights.topk(k)",
    "sort": "weights.topk(k)",
    "argsort": "weights.topk(k)",
    "argmax": "weights.topk(1)",
    "max": "weights.topk(1), or weights.received('max')",
    "mean": "weights.head_mean(), or weights.received('mean')",
    "log": "weights.entropy(), or weights.logsumexp()",
    "matmul": "weights @ x, or weights.mT @ y",
    "einsum": "weights @ x, or weights.mT @ y",
}
# Dynamo hands `weights @ x` and `x @ weights` over alike, as torch.matmul(x, weights).
SWAPPED = (
    "torch.compile swaps the sides of @ with weights. "
    "Write torch.matmul(weights, x), and torch.matmul(weights.mT, x.mT).mT for x @ weights."
)


class TensorLike:
    """Stands for a matrix of `shape`. Functions with a stream behind them stream, any other builds the matrix."""

    shape: torch.Size

    def full(self) -> Tensor:
        raise NotImplementedError

    def streams(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The answer of a torch function that needs no matrix, or NotImplemented."""
        return NotImplemented

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        name, kwargs = func.__name__, kwargs or {}
        if args and isinstance(args[0], TensorLike):
            answer = args[0].streams(name, *args[1:], **kwargs)
            if answer is not NotImplemented:
                return answer
        if name == "matmul" and len(args) == 2 and isinstance(args[1], TensorLike):
            if torch.compiler.is_dynamo_compiling():
                raise TypeError(SWAPPED)
            return args[1].mT.__matmul__(args[0].mT).mT
        if name == "__rmatmul__":
            return args[1].__matmul__(args[0])
        args, kwargs = tree_map(
            lambda x: _matrix(x, name) if isinstance(x, TensorLike) else x,
            (args, kwargs),
            is_leaf=lambda x: isinstance(x, TensorLike),
        )
        return func(*args, **kwargs)  # pyright: ignore[reportCallIssue]

    def __getattr__(self, name: str) -> Any:
        method = None if name.startswith("_") else getattr(Tensor, name, None)
        if not callable(method):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return lambda *args, **kwargs: type(self).__torch_function__(method, (), (self, *args), kwargs)


def _operator(name: str) -> Callable:
    def method(self: TensorLike, *args: Any) -> Any:
        return type(self).__torch_function__(getattr(Tensor, name), (), (self, *args))

    return method


for _name in OPERATORS:
    setattr(TensorLike, _name, _operator(_name))


def _matrix(x: TensorLike, name: str) -> Tensor:
    if x.numel() > TOO_LARGE:
        instead = INSTEAD.get(name, "weights.topk(k), weights.entropy(), weights.received(), weights @ x")
        raise MemoryError(
            f"{name}() would build the whole matrix {tuple(x.shape)}, {x.numel() * 4 / 2**30:.1f} GiB. "
            f"Ask for what you need instead: {instead}. weights.full() builds it all the same."
        )
    return x.full()
