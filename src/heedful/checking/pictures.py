"""Pictures of the right answer beside the wrong one, in characters."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from heedful.checking import cases
from heedful.checking.catalogue.entry import Mistake, Variant
from heedful.checking.function_calls import joined_call
from heedful.checking.readings import Reading
from heedful.checking.search import cast, difference
from heedful.checking.stages import RIGHT, Call, Linear, Result, Stages, attend
from heedful.checking.tables import TableReading, TableStages, TurnReading, TurnStages, rotated, table

SHADES = " ░▒▓█"
SHAPE = cases.Shape(batch=2, heads=2, kv_heads=2, queries=5, keys=5, head_dim=8, value_dim=8)


def picture(entry: Mistake) -> list[str]:
    """Lines with the right and the wrong weights, or values; empty where a picture would show nothing."""
    if entry.subject == "positions":
        return tables(entry)
    if entry.subject == "rotary":
        return rotations(entry)
    entry = entry.within(Stages)
    for variant in entry.variants:
        for call in calls(entry):
            lines = compared(call, variant)
            if lines:
                return lines
    return []


def calls(entry: Mistake) -> list[Call]:
    """Small calls that could show a mistake of this family, the telling ones first."""
    base = cases.plain(SHAPE)
    masked = cases.with_mask(base, per_sample=True)
    padded = cases.with_padding(base)
    empty = (
        replace(masked, mask=masked.mask & (torch.arange(5) != 1)[:, None])
        if masked.mask is not None
        else masked
    )
    plain = Reading().call(base, "bhld")
    grouped = Reading().call(cases.plain(replace(SHAPE, heads=4, kv_heads=2)), "bhld")
    joined = joined_call(base, Reading(), "ble")
    random = torch.Generator().manual_seed(1)
    matrices = {
        side: Linear(torch.randn(16, 16, generator=random, dtype=torch.float64) / 4, torch.ones(16).double())
        for side in ("query", "key", "value", "output")
    }
    module = replace(joined, projections=matrices)
    causal = Reading(causal="end").call(base, "bhld")
    with_bias = Reading().call(cases.with_bias(base), "bhld")
    mask = Reading().call(masked, "bhld")
    order = {
        "mask": [mask, Reading().call(padded, "bhld"), with_bias, Reading().call(empty, "bhld")],
        "causal": [causal],
        "heads": [joined, grouped],
        "module": [module],
        "positions": [Reading(alibi="distance", causal="end").call(base, "bhld")],
        "cache": [causal],
    }
    return [*order.get(entry.family, []), plain, mask, module]


def compared(call: Call, variant: Variant) -> list[str]:
    """Right and wrong weights side by side; right and wrong output where only that differs."""
    stages = RIGHT.with_all([variant])
    call = cast(call, torch.float64)
    own = replace(call, query=call.query.clone(), key=call.key.clone(), value=call.value.clone())
    if stages is None:
        return []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            right, wrong = attend(call, RIGHT), attend(own, stages)
        except (RuntimeError, IndexError):
            return []
    head = telling_head(right, wrong)
    if head is not None:
        sample, number = head
        return side_by_side(right.weights[sample, number], wrong.weights[sample, number])
    if right.output.shape == wrong.output.shape and differs(right.output, wrong.output):
        return rows_of_numbers(right.output.flatten(0, -2), wrong.output.flatten(0, -2))
    return []


def differs(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors differ visibly."""
    return difference(a, b, torch.ones((), dtype=torch.bool)) > 0.02


def telling_head(right: Result, wrong: Result) -> tuple[int, int] | None:
    """Sample and head in which the weights differ most."""
    if right.weights.shape != wrong.weights.shape or not differs(right.weights, wrong.weights):
        return None
    away = (right.weights - wrong.weights).abs().nan_to_num(1.0, 1.0, 1.0).sum((-1, -2))
    return divmod(int(away.argmax()), away.shape[1])


def side_by_side(right: Tensor, wrong: Tensor) -> list[str]:
    """Two matrices of weights as shades, with the sum of each row."""
    left, other = matrix("right weights", right), matrix("wrong weights", wrong)
    return [f"{a:<26}{b}".rstrip() for a, b in zip(left, other, strict=True)]


def matrix(title: str, weights: Tensor) -> list[str]:
    """One matrix: a row for each query, a cell for each key, and the row's sum."""
    rows = [f"{''.join(shade(w) for w in row)}  sum {total(row)}" for row in weights.tolist()]
    return [title, *rows]


def shade(weight: float) -> str:
    """Two characters, the darker the larger; `-` for less than 0, `?` for no number."""
    if weight != weight:
        return "??"
    if weight < -0.02:
        return "--"
    level = min(len(SHADES) - 1, int(weight * len(SHADES)) + (weight > 0.02))
    return SHADES[level] * 2


def total(row: Sequence[float]) -> str:
    """The sum of a row."""
    return f"{sum(row):.2f}"


def rows_of_numbers(right: Tensor, wrong: Tensor) -> list[str]:
    """The rows of two tensors that differ most, first numbers only."""
    row = int((right - wrong).abs().nan_to_num(1.0, 1.0, 1.0).amax(-1).argmax())
    return [f"right output  {numbers(right[row])}", f"wrong output  {numbers(wrong[row])}"]


def numbers(row: Tensor) -> str:
    """The first four numbers."""
    return " ".join(f"{x:6.2f}" for x in row[:4].tolist()) + " ..."


def waves(values: Tensor) -> list[str]:
    """A table of numbers from -1 to 1 as shades."""
    return ["".join(shade((x + 1) / 2) for x in row) for row in values.tolist()]


def tables(entry: Mistake) -> list[str]:
    """Right and wrong table: a row for each position, a cell for each column."""
    stages = TableStages().with_all(entry.variants[:1])
    if stages is None:
        return []
    width = 7 if entry.name == "positions-odd-size" else 8
    right = table(8, width, TableReading(), TableStages())
    try:
        wrong = table(8, width, TableReading(), stages)
    except RuntimeError as error:
        return [f"raises: {error}"]
    if "add" in stages.replaced:
        zero = torch.zeros(8, width, dtype=torch.float64)
        wrong = stages.add(zero, wrong) / 2
        right = right / 2
    return pair(waves(right), waves(wrong)) if differs(right, wrong) else []


def rotations(entry: Mistake) -> list[str]:
    """Right and wrong scores of one query and key at all pairs of positions: the same along diagonals, if right."""
    stages = TurnStages().with_all(entry.variants[:1])
    if stages is None:
        return []
    random = torch.Generator().manual_seed(4)
    query, key = (
        torch.randn(1, 2, 1, 8, generator=random, dtype=torch.float64).expand(1, 2, 6, 8) for _ in range(2)
    )

    def scores(stages: TurnStages) -> Tensor:
        q, k = rotated(query, key, TurnReading(), stages)
        matrix = (q @ k.mT)[0, 1]
        return matrix / matrix.abs().max()

    right, wrong = scores(TurnStages()), scores(stages)
    return pair(waves(right), waves(wrong)) if differs(right, wrong) else []


def pair(right: list[str], wrong: list[str]) -> list[str]:
    """Two pictures side by side."""
    lines = [f"{'right':<20}wrong"]
    return lines + [f"{a:<20}{b}".rstrip() for a, b in zip(right, wrong, strict=True)]
