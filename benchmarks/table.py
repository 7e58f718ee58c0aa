"""The tables of the README, from the figures that were measured.

python -m benchmarks --json benchmarks/results.json
python -m benchmarks.watch_models --json benchmarks/watching.json
python -m benchmarks.table
"""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LEFT_OUT = ("full N1024 D64", "full N4096 D128", "forward + backward N4096 full")  # of the README, for room
NAMES = {"smollm2": "SmolLM2-135M", "minilm": "MiniLM"}


def read(name: str) -> dict[str, Any]:
    """The figures in results.json or watching.json."""
    return json.loads((HERE / f"{name}.json").read_text())


def attention(report: dict[str, Any]) -> str:
    """One line per case: float32 and bfloat16, each output alone and with four answers, and PyTorch's other ways."""
    lines = [
        "| | output | + 4 answers | matrix | flex | bf16 output | + 4 answers |",
        "|---|---|---|---|---|---|---|",
    ]
    cases: dict[str, dict[str, Any]] = {}
    for row in report["cases"]:
        if row["case"] in LEFT_OUT:
            continue
        cases.setdefault(row["case"], {})[row["dtype"]] = row
    for name, rows in cases.items():
        cells = [_ratio(rows["float32"], column) for column in ("output", "four", "eager", "flex")]
        cells += [_ratio(rows["bfloat16"], column) for column in ("output", "four")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def models(report: dict[str, Any]) -> str:
    """One line per model: its plain forward pass, and what it costs to ask of every head."""
    lines = [
        "| | plain | watched, asked later | heedful, asked at once | peak memory | its matrices |",
        "|---|---|---|---|---|---|",
    ]
    for name in NAMES:
        rows = {row["way"]: row for row in report["rows"] if row["case"] == name}
        plain, later, heedful = (rows[way] for way in ("plain", "later", "heedful"))
        lines.append(
            f"| {NAMES[name]}, {plain['reads']} | {plain['seconds']:.1f} s | {later['ratios']['time']:.2f} | "
            f"{heedful['ratios']['time']:.2f} | {heedful['ratios']['peak']:.2f} | {plain['matrices_mb'] / 1e3:.1f} GB |"
        )
    return "\n".join(lines)


def _ratio(row: dict[str, Any], column: str) -> str:
    return f"{row[column]['ratio']:.2f}" if column in row else ""


if __name__ == "__main__":
    print(attention(read("results")))
    print()
    print(models(read("watching")))
