"""Reading what a caller gave: descriptions and conversions."""

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

# Numbers of numpy are registered; sizes in a program that torch.export traces are not.
INTEGERS: tuple[type, ...] = (int, Integral, torch.SymInt)
NUMBERS: tuple[type, ...] = (int, float, Real, torch.SymInt, torch.SymFloat)


def describe(value: object) -> str:
    """A tensor by its dtype and shape, anything else as it prints."""
    if not isinstance(value, Tensor):
        return repr(value)
    return f"{value.dtype} {tuple(value.shape)}".removeprefix("torch.")


def tensors_of(owner: object) -> tuple[Tensor, ...]:
    """The tensors that a bias, an edit or a reduction says it is made of; it need not say anything."""
    tensors = getattr(owner, "tensors", ())
    return (tensors,) if isinstance(tensors, Tensor) else tensors


def readable(*tensors: Tensor) -> bool:
    """Whether there are numbers to read: not while a compiler traces, on the meta device, or in a fake tensor."""
    for tensor in tensors:
        if tensor.is_meta or isinstance(tensor, FakeTensor):
            return False
    return not torch.compiler.is_compiling()


def transformed() -> bool:
    """Whether torch.func or forward mode follows what is done, which must then be plain operations."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def autocast_dtype(x: object) -> torch.dtype | None:
    """What autocast wants such a tensor in; None where it is off."""
    if not isinstance(x, Tensor) or x.is_meta:
        return None
    device = "cpu" if x.is_cpu else x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def answer_dtype(x: Tensor) -> torch.dtype:
    """What a call with such tensors is computed and answered in: float64 for float64, float32 for everything else."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def product_dtype(x: Tensor, answers: torch.dtype) -> torch.dtype:
    """The dtype of a product of weights with x: that of x, or of answers where x holds no fractions."""
    return x.dtype if x.is_floating_point() else answers


def integers(name: str, value: int | Tensor) -> Tensor:
    """An integer tensor of no or one dimension, not negative."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = torch.tensor(value)
    if (
        not isinstance(value, Tensor)
        or value.dtype.is_floating_point
        or value.dtype == torch.bool
        or value.dim() > 1
    ):
        raise ValueError(f"{name} must be an integer or an integer tensor (B,), got {describe(value)}.")
    if readable(value) and value.numel() and int(value.min()) < 0:
        raise ValueError(f"{name} must not be negative, got {value.tolist()}.")
    return value


def boolean(name: str, value: Tensor) -> Tensor:
    """A bool tensor from a bool or integer 0/1 tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a bool or integer 0/1 tensor, got {type(value).__name__}.")
    if value.dtype.is_floating_point or value.dtype.is_complex:
        raise TypeError(
            f"{name} must be bool or integer 0/1, got {describe(value)}. "
            + (
                "A float mask could mean two things: write mask=(m != 0) if nonzero means may attend, "
                "or attn_bias=m if it is added to the scores."
                if name == "mask"
                else "Write (m != 0) if nonzero means may attend."
            )
        )
    if value.dtype == torch.bool:
        return value
    if readable(value) and bool(((value != 0) & (value != 1)).any()):
        raise ValueError(
            f"{name} must hold 0 and 1 only, got values from {int(value.min())} to {int(value.max())}. "
            "1 = may attend. Numbers to add to the scores go into attn_bias."
        )
    return value != 0


def integer_tuple(name: str, given: object) -> tuple[int, ...]:
    """A tuple of integers from a sequence or a tensor of them."""
    found = given.tolist() if isinstance(given, Tensor) else given
    if not isinstance(found, Sequence) or not all(type(each) is int for each in found):
        raise TypeError(f"{name} must be a sequence of integers such as (0, 5), got {describe(given)}.")
    return tuple(found)


def broadcasts(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    """Whether a tensor of one shape can be expanded to another."""
    pairs = zip(reversed(shape), reversed(full), strict=False)
    return len(shape) <= len(full) and all(size in (1, whole) for size, whole in pairs)


def one_of(name: str, value: object, choices: tuple[str | bool, ...]) -> None:
    """Raise unless the value is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def above_zero(name: str, value: Any, remedy: str = "") -> None:
    """Raise unless the value is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, NUMBERS) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a finite number above zero, got {value!r}.{remedy}")


def share(name: str, value: Any, remedy: str = "") -> None:
    """Raise unless the value is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, NUMBERS) or not 0 <= value <= 1:
        raise ValueError(f"{name} must be a number from 0 to 1, got {value!r}.{remedy}")


def at_least_one(name: str, value: Any) -> None:
    """Raise unless the value is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, INTEGERS) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")


OF_TORCH = {
    "attn_mask": "mask= takes a bool mask, True = may attend, and attn_bias= a float one",
    "is_causal": "write mask=heedful.masks.causal(), and query_start=0 to count from the first key as torch does",
    "enable_gqa": "leave it out: key heads are shared wherever there are fewer of them",
    "need_weights": "leave it out: the weights are always returned, and cost nothing until they are asked",
    "average_attn_weights": "leave it out: weights are per head, and weights.mean(-3) is their mean",
    "key_padding_mask": "write mask=heedful.masks.padding(~key_padding_mask): True = may attend",
    "batch_first": "leave it out: tensors are always batch first",
    "dropout": "the function takes dropout_p=, and a module dropout= where it is made",
}


def unknown_arguments(names: Iterable[str], function: Callable[..., Any]) -> str:
    """What to say about arguments that a function does not have: what torch's are here, and names that come close."""
    known = [name for name in inspect.signature(function).parameters if name != "unknown"]

    def hint(name: str) -> str:
        close = difflib.get_close_matches(name, known, n=1)
        return f": {OF_TORCH[name]}" if name in OF_TORCH else f": did you mean {close[0]}?" if close else ""

    text = "; no ".join(f"argument {name!r}{hint(name)}" for name in names)
    return text if text.endswith("?") else f"{text}."
