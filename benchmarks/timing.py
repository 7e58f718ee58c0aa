"""Timing that survives a busy machine: two contestants take turns, and only ratios within a turn are compared."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from heedful.backends import native


def take_turns(contestants: dict[str, Callable[[], Any]], turns: int) -> dict[str, dict[str, float]]:
    """Time each of two or more against the first, those two in turn, `turns` times after one warm-up of all.

    Returns:
        For each name "ms", its median time, and "ratio", the median over turns of its time to that of the first.
    """
    for run in contestants.values():
        run()
    (reference, first), *others = contestants.items()
    pairs = {name: [(_seconds(first), _seconds(run)) for _ in range(turns)] for name, run in others}
    found = {
        reference: {
            "ms": _milliseconds(before for each in pairs.values() for before, _ in each),
            "ratio": 1.0,
        }
    }
    for name, each in pairs.items():
        ratio = statistics.median(after / before for before, after in each)
        found[name] = {"ms": _milliseconds(after for _, after in each), "ratio": round(ratio, 3)}
    return found


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _milliseconds(seconds: Iterable[float]) -> float:
    return round(1e3 * statistics.median(seconds), 3)


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    found = native.info()
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "torch_level": torch.backends.cpu.get_cpu_capability(),
        "native_level": found.level,
        "native_compiler": found.compiler,
        "native_reason": found.reason,
        "load_average": round(os.getloadavg()[0], 1),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = dict(line.split(":", 1) for line in lines if ":" in line)
    named = {key.strip(): value.strip() for key, value in named.items()}
    model = named.get("model name", platform.processor() or platform.machine())
    return (
        f"{model} (family {named['cpu family']}, model {named['model']})" if "cpu family" in named else model
    )
