"""The table of the README, from the figures in results.json.

    python -m benchmarks.table
"""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.json")


def markdown(report: dict[str, Any]) -> str:
    """One line per case: float32 and bfloat16, each output alone and with four answers, and PyTorch's other ways."""
    lines = [
        "| | output | + 4 answers | matrix | flex | bf16 output | + 4 answers |",
        "|---|---|---|---|---|---|---|",
    ]
    cases: dict[str, dict[str, Any]] = {}
    for row in report["cases"]:
        cases.setdefault(row["case"], {})[row["dtype"]] = row
    for name, rows in cases.items():
        cells = [_ratio(rows["float32"], column) for column in ("output", "four", "eager", "flex")]
        cells += [_ratio(rows["bfloat16"], column) for column in ("output", "four")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(row: dict[str, Any], column: str) -> str:
    return f"{row[column]['ratio']:.2f}" if column in row else ""


if __name__ == "__main__":
    print(markdown(json.loads(RESULTS.read_text())))
