"""Time heedful against PyTorch's own attention; every case is checked against float64 before it is timed.

    python -m benchmarks [--only TEXT] [--quick] [--dtype float32 bfloat16] [--backend NAME] [--json FILE]

The figures are medians of ratios: time relative to `F.scaled_dot_product_attention` producing its output alone. For
comparison, PyTorch with the whole matrix of weights ("matrix"), and compiled flex_attention ("flex", not with --quick).
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .attention_cases import CASES, Contest
from .timing import machine, take_turns

COLUMNS = {
    "output": "output",
    "four": "output + 4 answers",
    "everything": "everything",
    "eager": "matrix",
    "flex": "flex",
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def measure(options: argparse.Namespace, progress: Progress) -> list[dict[str, Any]]:
    chosen = [case for case in CASES if not options.only or options.only in case.name]
    task = progress.add_task("timing", total=len(chosen) * len(options.dtype))
    found = []
    for case in chosen:
        for dtype in options.dtype:
            progress.update(task, description=f"{case.name}, {dtype}")
            contest = Contest(case, DTYPES[dtype], options.backend)
            contest.check()
            turns = 3 if options.quick else case.turns
            with torch.set_grad_enabled(case.train):
                contestants = contest.contestants(compiled=not options.quick)
                found.append({"case": case.name, "dtype": dtype, **take_turns(contestants, turns)})
            progress.advance(task)
    return found


def table(found: list[dict[str, Any]]) -> Table:
    shown = Table("case", "dtype", "torch ms", *COLUMNS.values())
    for row in found:
        ratios = (f"{row[name]['ratio']:.2f}" if name in row else "" for name in COLUMNS)
        shown.add_row(row["case"], row["dtype"], f"{row['torch']['ms']:.1f}", *ratios)
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="TEXT", help="cases whose name holds this")
    parser.add_argument("--quick", action="store_true", help="three turns each")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES), help="default: both")
    parser.add_argument("--backend", default="auto", help="heedful's backend (default: auto)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    options = parser.parse_args()
    console = Console()
    if not any(not options.only or options.only in case.name for case in CASES):
        parser.error(f"no case holds {options.only!r}; there are {', '.join(case.name for case in CASES)}")
    described = machine()
    console.print(
        f"{described['processor']}, {described['threads']} threads, load {described['load_average']}"
    )
    with Progress(console=Console(stderr=True), transient=True) as progress:
        found = measure(options, progress)
    console.print(table(found))
    if options.json:
        report = {"machine": described, "backend": options.backend, "quick": options.quick, "cases": found}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
