"""Timing that survives a busy machine: the contestants take turns, and only ratios within a turn are compared."""

import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from heedful.backends import native


def take_turns(contestants: dict[str, Callable[[], Any]], turns: int) -> dict[str, dict[str, float]]:
    """Run each in turn, `turns` times after one warm-up.

    Returns:
        For each name "ms", its median time, and "ratio", the median over turns of its time to that of the first.
    """
    for run in contestants.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(turns):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    first = next(iter(seconds.values()))
    return {
        name: {
            "ms": round(1e3 * statistics.median(each), 3),
            "ratio": round(statistics.median(a / b for a, b in zip(each, first, strict=True)), 3),
        }
        for name, each in seconds.items()
    }


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
