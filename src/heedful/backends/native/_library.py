"""The compiled kernel: find it, choose the fastest level this machine runs, call it."""

import ctypes
import os
from ctypes import POINTER, Structure, c_float, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from ._compile import LEVELS, LIBRARIES, SUFFIX, machine

LEVEL_VARIABLE = "HEEDFUL_NATIVE_LEVEL"
FOLDER_VARIABLE = "HEEDFUL_NATIVE_LIBRARIES"
FLOATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
DTYPES = {**FLOATS, torch.bool: 3}


class Array(Structure):
    """A four-dimensional array, see call.h."""

    _fields_ = (
        ("data", c_void_p),
        *((name, c_int64) for name in ("dtype", "stride0", "stride1", "stride2", "stride3")),
    )


class NativeCall(Structure):
    """What the kernel is told, field by field as in call.h."""

    _fields_ = (
        *((name, c_int64) for name in ("struct_size", "threads")),
        *(
            (name, c_int64)
            for name in ("batch", "heads", "kv_heads", "queries", "keys", "width", "value_width")
        ),
        *((name, Array) for name in ("query", "key", "value", "output")),
        ("scale", c_float),
        ("softcap", c_float),
        ("bias", Array),
        ("slopes", c_void_p),
        ("positions", c_void_p),
        ("position_stride", c_int64),
        ("sinks", c_void_p),
        ("first", c_void_p),
        ("last", c_void_p),
        ("range_stride", c_int64),
        ("mask", Array),
        *((name, c_void_p) for name in ("logsumexp", "max_logit", "entropy", "mass", "mean_distance")),
        ("topk", c_int64),
        *((name, c_void_p) for name in ("topk_weight", "topk_key", "weights", "row_state")),
        *((name, c_void_p) for name in ("received_sum", "received_max", "received_count")),
        ("profile_size", c_int64),
        ("profile", c_void_p),
        *((name, c_int64) for name in ("map_rows", "map_columns")),
        *((name, c_void_p) for name in ("map_row", "map_column", "map_scale", "map_sum", "map_max")),
        ("carried", c_void_p),
        *((name, c_int64) for name in ("carried_width", "carried_stride")),
        ("carried_sum", c_void_p),
    )


class NativeGradient(Structure):
    """What the kernel knows and writes of a gradient, field by field as in call.h."""

    _fields_ = (
        ("struct_size", c_int64),
        ("row_state", c_void_p),
        ("output", Array),
        *((name, c_void_p) for name in ("logsumexp", "entropy", "received_sum")),
        ("topk", c_int64),
        *((name, c_void_p) for name in ("topk_weight", "topk_key")),
        *((name, Array) for name in ("query", "key", "value")),
        *((name, c_void_p) for name in ("logits", "row")),
    )


def in_memory(x: Tensor) -> Tensor:
    """The tensor with its numbers as they lie in memory: some of torch's are negative only by a flag, or 0 by one."""
    if not (x.is_neg() or x._is_zerotensor()):
        return x
    x = x.detach().resolve_neg()
    return x.clone() if x._is_zerotensor() else x


def array(tensor: Tensor) -> Array:
    """A (B, H, L, ...) tensor as the kernel sees it."""
    return Array(tensor.data_ptr(), DTYPES[tensor.dtype], *tensor.stride())


@dataclass(frozen=True)
class Library:
    """A loaded library."""

    path: Path
    functions: ctypes.CDLL

    @property
    def level(self) -> str:
        """The instruction-set level it was compiled for."""
        return self.functions.heedful_level().decode()

    @property
    def compiler(self) -> str:
        """What compiled it."""
        return self.functions.heedful_compiler().decode()

    @property
    def shares_threads(self) -> bool:
        """Whether it uses OpenMP, the thread pool of PyTorch, rather than threads of its own."""
        return bool(self.functions.heedful_uses_openmp())


class Unavailable(Exception):
    """Why there is no library to use: one sentence."""


def folder() -> Path:
    """Where the libraries are looked for."""
    return Path(os.environ.get(FOLDER_VARIABLE) or LIBRARIES)


def built() -> list[str]:
    """The levels that were compiled, slowest first."""
    return [level for level in LEVELS.get(machine(), {}) if (folder() / f"{level}{SUFFIX}").exists()]


def load(level: str) -> Library:
    """The library of one level. Raises Unavailable."""
    path = folder() / f"{level}{SUFFIX}"
    try:
        functions = ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"its library cannot be loaded: {error}") from None
    wanted = (ctypes.sizeof(NativeCall), ctypes.sizeof(NativeGradient))
    if not hasattr(functions, "heedful_sizes") or _sizes(functions) != wanted:
        raise Unavailable(f"{path} was compiled from another version of heedful; install it again")
    functions.heedful_level.restype = functions.heedful_compiler.restype = ctypes.c_char_p
    functions.heedful_forward.argtypes = (POINTER(NativeCall),)
    functions.heedful_backward.argtypes = (POINTER(NativeCall), POINTER(NativeGradient))
    return Library(path, functions)


def _sizes(functions: ctypes.CDLL) -> tuple[int, int]:
    sizes = (c_int64 * 2)()
    functions.heedful_sizes(sizes)
    return sizes[0], sizes[1]


@cache
def library() -> Library:
    """The fastest library this machine runs, or the one that $HEEDFUL_NATIVE_LEVEL names. Raises Unavailable."""
    levels = built()
    if not levels:
        raise Unavailable("the native kernel was not compiled when heedful was installed")
    # The oldest level runs everywhere, and knows what else the machine can run.
    able = load(levels[0]).functions.heedful_can_run
    runnable = [level for level in levels if able(level.encode())]
    wanted = os.environ.get(LEVEL_VARIABLE)
    if wanted:
        if wanted not in runnable:
            names = ", ".join(runnable) or "none"
            raise Unavailable(f"{LEVEL_VARIABLE}={wanted} is not among the levels that run here: {names}")
        return load(wanted)
    if not runnable:
        raise Unavailable(f"this processor runs none of the compiled levels: {', '.join(levels)}")
    return load(runnable[-1])


@cache
def reason() -> str | None:
    """Why there is no library, or None when there is one."""
    try:
        library()
    except Unavailable as error:
        return str(error)
    return None


def forward(call: NativeCall) -> None:
    """Run the kernel on a call whose tensors the caller keeps alive."""
    call.struct_size, call.threads = ctypes.sizeof(NativeCall), torch.get_num_threads()
    _check(library().functions.heedful_forward(call))


def backward(call: NativeCall, gradient: NativeGradient) -> None:
    """Run the gradient of the kernel, likewise."""
    call.struct_size, call.threads = ctypes.sizeof(NativeCall), torch.get_num_threads()
    gradient.struct_size = ctypes.sizeof(NativeGradient)
    _check(library().functions.heedful_backward(call, gradient))


def _check(status: int) -> None:
    if status:
        raise MemoryError("heedful's native kernel could not get the memory it needs")
