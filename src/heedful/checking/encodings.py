"""Examines a positional encoding: a function that makes a table, or a module that adds one to its input."""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.checking import catalogue
from heedful.checking.calling import CallFailed, call_quietly, tensors_in
from heedful.checking.claims import Claim, read
from heedful.checking.fit import Fit, error_of, simplest
from heedful.checking.options import Options
from heedful.checking.problems import CannotCheck
from heedful.checking.record import Record, compared
from heedful.checking.roles import assign, parameters
from heedful.checking.tables import TableReading, TableStages, table

ROLES = ("length", "width", "input", "base", "start", "dropout", "device", "dtype")
SIZES = ((7, 8), (9, 12))
LONG = 4096
LOOSE = 0.05
Make = Callable[[int, int], Tensor]  # length and width to a table


def examine(target: Any, name: str, options: Options, progress: Callable[[str], None]) -> Record:
    """Find out what is wrong with a positional encoding."""
    record = Record(name)
    progress("making tables")
    if inspect.isclass(target) or isinstance(target, nn.Module):
        from heedful.checking.encoding_modules import examine_module

        examine_module(record, target, options)
        return record
    make = maker(target, options)
    judge(record, make, list(SIZES), target, lambda: make(5, 7))
    return record


def maker(target: Any, options: Options) -> Make:
    """How to get a table out of a function."""
    names = assign(target, ROLES, in_order=())
    needed = [p.name for p in parameters(target) if p.default is p.empty]
    if "length" not in names or "width" not in names:
        free = [n for n in needed if n not in names.values()]
        for role in ("length", "width"):
            if role not in names and free:
                names[role] = free.pop(0)
    missing = [r for r in ("length", "width") if r not in names]
    if missing:
        raise CannotCheck(
            f"I can't tell which parameter is the {' and which the '.join(missing)}: the parameters are "
            f"({', '.join(p.name for p in parameters(target))}). Name them seq_len and embed_dim."
        )

    def make(length: int, width: int) -> Tensor:
        given = {names["length"]: length, names["width"]: width} | dict(options.settings)
        return as_table(call_quietly(target, (), given), length, width)

    return make


def as_table(result: object, length: int, width: int) -> Tensor:
    """The table (length, width) in what was returned; leading axes of size 1 don't count.

    Raises:
        CallFailed: There is none.
    """
    found = tensors_in(result)
    for tensor in found:
        squeezed = tensor.detach().double().reshape([n for n in tensor.shape if n != 1] or [1])
        if squeezed.shape == (length, width):
            return squeezed
    shapes = ", ".join(str(tuple(t.shape)) for t in found) or f"a {type(result).__name__}"
    raise CallFailed(f"it returned {shapes} for {length} positions and {width} columns")


def readings() -> list[TableReading]:
    """Conventions, most likely first."""
    return [
        TableReading(layout, cosine_first, start, spacing)
        for spacing in ("size", "ends")
        for start in (0, 1)
        for cosine_first in (False, True)
        for layout in ("pairs", "halves")
    ]


def judge(
    record: Record,
    make: Make,
    sizes: list[tuple[int, int]],
    target: Any,
    make_odd: Callable[[], Tensor] | None,
) -> Fit | None:
    """Compare the tables with the right ones, and say what is wrong with them.

    Args:
        record: Where findings go.
        make: Makes a table.
        sizes: Tables to make.
        target: What makes them.
        make_odd: Makes a table of 5 positions and 7 columns; None where that can't be asked.
    """
    right = TableStages()
    try:
        seen = [make(*size) for size in sizes]
    except CallFailed as error:
        raise CannotCheck(
            f"calling it with {sizes[0][0]} positions and {sizes[0][1]} columns failed:\n{error}"
        ) from error
    fit = fitted(seen, sizes, right)
    if fit is None:
        fit = fitted(seen, sizes, right, LOOSE)
        if fit is None:
            describe(record, seen[0])
            return None
    write(record, fit, seen, sizes, right, target)
    half_precision(record, fit, make, sizes[0][1], right)
    if make_odd is not None:
        odd_size(record, fit, make_odd)
    return fit


def predictor(sizes: Sequence[tuple[int, int]]) -> Callable[[TableReading, TableStages], list[Tensor]]:
    """From conventions and stages to the tables of these sizes."""
    return lambda reading, stages: [table(length, width, reading, stages) for length, width in sizes]


def entries() -> list[Any]:
    """The mistakes a table can have by itself."""
    wanted = [m for m in catalogue.mistakes("positions") if m.searched and m.family == "positions"]
    return [m for m in wanted if not any("add" in v.stages for v in m.variants)]


def fitted(
    seen: Sequence[Tensor], sizes: Sequence[tuple[int, int]], right: TableStages, tolerance: float = 2e-4
) -> Fit | None:
    """Conventions and mistakes that make these tables; other bases are tried as conventions of their own."""
    found = simplest(seen, readings(), entries(), right, predictor(sizes), tolerance)
    if found is not None or seen[0].shape[0] < 2:
        return found
    for reading in readings():
        guess = base_of(seen[0], reading)
        if guess is None:
            continue
        trial = replace(reading, base=guess)
        error = error_of(seen, trial, (), right, predictor(sizes))
        if error <= max(tolerance, 1e-3):
            return Fit(trial, (), error)
    return None


def base_of(seen: Tensor, reading: TableReading) -> float | None:
    """The base that explains how far the second pair turns in one step."""
    width = seen.shape[1]
    pair = (2, 3) if reading.layout == "pairs" else (1, (width + 1) // 2 + 1)
    if width < 4 or max(pair) >= width:
        return None
    sine, cosine = (
        seen[1 - reading.start, p].item() if reading.start == 0 else seen[0, p].item() for p in pair
    )
    if reading.cosine_first:
        sine, cosine = cosine, sine
    step = torch.atan2(torch.tensor(sine), torch.tensor(cosine)).item()
    exponent = 2 / width if reading.spacing == "size" else 1 / ((width + 1) // 2 - 1)
    return step ** (-1 / exponent) if step > 0 else None


def write(
    record: Record,
    fit: Fit,
    seen: Sequence[Tensor],
    sizes: Sequence[tuple[int, int]],
    right: TableStages,
    target: Any,
) -> None:
    """Mistakes and conventions of a table."""
    reading: TableReading = fit.reading
    plain = error_of(seen, reading, (), right, predictor(sizes))
    for made in fit.made:
        extra = {"longest": 6.28 * 10000 ** float(str(made.variant.words.get("by", 1))), "right": 62832.0}
        smallest = f"{sizes[0][0]} positions, {sizes[0][1]} columns"
        record.find(
            made.mistake.name, compared(plain, fit.error), dict(made.variant.words) | extra, smallest=smallest
        )
    if reading.base != 10000.0:
        paper = error_of(seen, replace(reading, base=10000.0), (), right, predictor(sizes))
        record.find("positions-base", compared(paper, fit.error), {"instead": float(f"{reading.base:.4g}")})
    record.convention(
        "columns in pairs (sine, cosine, ...)" if reading.layout == "pairs" else "sines, then cosines"
    )
    if reading.cosine_first:
        record.convention("cosines before sines")
    if reading.spacing == "ends":
        record.convention("frequencies spaced as in tensor2tensor and fairseq: i / (d/2 - 1)")
    start(record, reading, read(target, {}).start)


def start(record: Record, reading: TableReading, claim: Claim | None) -> None:
    """Where positions start."""
    if claim is not None and int(claim.what) != reading.start:
        words = {"actual": reading.start, "claim": claim.where, "claimed": claim.what}
        record.find("positions-from-one", "the first row of the table", words)
    elif reading.start:
        record.convention(f"positions from {reading.start}")


def half_precision(record: Record, fit: Fit, make: Make, width: int, right: TableStages) -> None:
    """Positions in the thousands, where half precision shows."""
    try:
        seen = make(LONG, width)
    except CallFailed as error:
        record.untold.append(f"{LONG} positions: {error}")
        return
    stages = fit.stages(right)
    away = (seen - table(LONG, width, fit.reading, stages)).abs().amax(1)
    if away.max() > LOOSE:
        position = int((away > LOOSE).nonzero()[0])
        words = {"position": int(away.argmax()), "error": away.max().item()}
        record.find("positions-half-precision", f"the first position that is off by more than {LOOSE} is {position}",
                    words, smallest=f"position {position}")  # fmt: skip


def odd_size(record: Record, fit: Fit, make: Callable[[], Tensor]) -> None:
    """An odd number of columns."""
    try:
        seen = make()
    except CallFailed as error:
        text = str(error)
        if re.search(r"even|divisible|odd|% 2", text):
            record.convention("even sizes only, and says so")
            return
        outcome = (
            f"raises {text.splitlines()[0]}"
            if "returned" not in text
            else f"makes a table of another shape: {text}"
        )
        record.find(
            "positions-odd-size", "5 positions, 7 columns", {"outcome": outcome}, smallest="3 columns"
        )
        return
    off = (seen - table(5, 7, fit.reading, TableStages())).abs().max().item()
    if off > LOOSE and not fit.made and fit.reading.spacing == "size":
        record.find("positions-odd-size", "5 positions, 7 columns", {"outcome": f"changes the waves by {off:.1e}"},
                    smallest="3 columns")  # fmt: skip


def describe(record: Record, seen: Tensor) -> None:
    """Properties, when nothing known fits."""
    record.properties.append("no known mistake, and no pair of them, reproduces the table")
    if (seen - seen[0]).abs().max() < 1e-6:
        record.properties.append("all rows are the same")
    if seen.abs().max() > 1.001:
        record.properties.append(f"it holds numbers up to {seen.abs().max().item():.3g}; sines stay within 1")
    lengths = seen.norm(dim=1)
    if (lengths - lengths[0]).abs().max() > 1e-3:
        record.properties.append(
            "rows have different lengths; with pairs of sine and cosine all are sqrt(d / 2)"
        )
