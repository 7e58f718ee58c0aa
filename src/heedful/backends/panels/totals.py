"""Merging what the panels contribute to one answer."""

from typing import Any

import torch
from torch import Tensor

from ..._checks import one_of
from ...reductions import spread
from .plan import Part

Contribution = tuple[Tensor, ...]


class Totals:
    """One growing answer, of a reduction or the output. Parts must come as the plan has them, the last rows first."""

    def __init__(self, name: str, place: str, merge: str, num_keys: int):
        one_of(f"{name}.place", place, ("rows", "keys", "heads"))
        one_of(f"{name}.merge", merge, ("sum", "max"))
        self.name, self.place, self.merge, self.num_keys = name, place, merge, num_keys
        self.is_tuple = False
        # Per batch chunk and head chunk: a list of row blocks, or the merged contribution.
        self.grid: dict[int, dict[int, Any]] = {}

    def add(self, part: Part, contribution: Tensor | Contribution) -> None:
        self.is_tuple = isinstance(contribution, tuple)
        parts = contribution if isinstance(contribution, tuple) else (contribution,)
        for tensor in parts:
            self._check(part, tensor)
        heads = self.grid.setdefault(part.batch.start, {})
        if self.place == "rows":
            heads.setdefault(part.heads.start, []).insert(0, parts)
            return
        if self.place == "keys":
            nothing = -torch.inf if self.merge == "max" else 0.0
            parts = tuple(spread(tensor, part.spans, self.num_keys, 2, nothing) for tensor in parts)
        before = heads.get(part.heads.start)
        heads[part.heads.start] = parts if before is None else tuple(map(self._merged, before, parts))

    def result(self) -> Tensor | Contribution:
        merged = _cat([_cat(list(map(self._joined, heads.values())), 1) for heads in self.grid.values()], 0)
        return merged if self.is_tuple else merged[0]

    def _joined(self, cell: Any) -> Contribution:
        return _cat(cell, 2) if self.place == "rows" else cell

    def _merged(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.maximum(x, y) if self.merge == "max" else x + y

    def _check(self, part: Part, x: Tensor) -> None:
        keys = sum(map(len, part.spans))
        wanted = {"rows": part.rows.shape, "keys": (*part.rows.shape[:2], keys), "heads": part.rows.shape[:2]}
        expected = wanted[self.place]
        if not isinstance(x, Tensor) or tuple(x.shape[: len(expected)]) != tuple(expected):
            names = {
                "rows": "(batch, heads, rows, ...)",
                "keys": "(batch, heads, keys, ...)",
                "heads": "(batch, heads, ...)",
            }
            shown = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            sizes = ", ".join(map(str, expected))
            raise ValueError(
                f"{self.name}.panel() has place {self.place!r} and must return {names[self.place]} = ({sizes}, ...), "
                f"got {shown}."
            )


def _cat(parts: list[Contribution], dim: int) -> Contribution:
    if len(parts) == 1:
        return parts[0]
    return tuple(torch.cat(tensors, dim) for tensors in zip(*parts, strict=True))
