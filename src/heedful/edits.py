"""Edits: change the weights before the values are summed.

An edit is a pure function panel -> weights, for `scaled_dot_product_attention(..., edit=...)`; a sequence is applied in
order. The weights that a call returns are the edited ones. An edit of your own gets a `Panel` and returns weights of
the same shape and dtype; where gradients must reach tensors that it closes over, it lists them as `.tensors`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ._rows import Index
from .reductions import Edit, Panel

Choice = int | slice | Sequence[int] | Tensor


@dataclass(frozen=True)
class Ablate:
    """Some heads see nothing."""

    heads: tuple[int, ...]

    def misfits(self, B: int, H: int, L: int, S: int) -> list[str]:
        return [f"ablate({head}) names a head of {H}" for head in self.heads if not -H <= head < H]

    def __call__(self, panel: Panel) -> Tensor:
        H = panel.rows.num_heads
        wanted = torch.tensor([head % H for head in self.heads], device=panel.weights.device)
        heads = _numbers(panel.rows.heads, panel.weights.device)
        return panel.weights.masked_fill(torch.isin(heads, wanted)[:, None, None], 0)


@dataclass(frozen=True, eq=False)
class Cut:
    """Some queries cannot look at some keys; what they lose is lost, or shared out among the rest."""

    rows: Choice
    keys: Choice
    renormalize: bool

    def misfits(self, B: int, H: int, L: int, S: int) -> list[str]:
        complaints = []
        for name, choice, size in (("rows", self.rows, L), ("keys", self.keys, S)):
            try:
                torch.arange(size)[_as_index(choice)]
            except IndexError as error:
                complaints.append(f"cut(): {name}={choice!r} does not fit {size} {name}: {error}")
        return complaints

    def __call__(self, panel: Panel) -> Tensor:
        device = panel.weights.device
        rows = _among(_numbers(panel.rows.index, device), self.rows, panel.rows.num_queries)
        keys = _among(panel.keys, self.keys, panel.rows.num_keys)
        weights = panel.weights.masked_fill(rows[:, None] & keys, 0)
        return _shared_out(weights, panel.weights) if self.renormalize else weights


@dataclass(frozen=True)
class WithoutSink:
    """The first keys are set aside, and the rest of each row sums to what the whole did."""

    keys: int

    def misfits(self, B: int, H: int, L: int, S: int) -> list[str]:
        return [f"without_sink({self.keys}) sets aside more than the {S} keys"] if self.keys > S else []

    def __call__(self, panel: Panel) -> Tensor:
        return _shared_out(panel.weights.masked_fill(panel.keys < self.keys, 0), panel.weights)


def ablate(*heads: int) -> Edit:
    """Zero whole heads: their output is 0, and nothing else changes.

    Args:
        heads: Numbers of query heads; negative ones count from the end.

    Cost: one pass over each panel.
    """
    if not heads:
        raise TypeError("ablate() needs a head: write ablate(0), or ablate(0, 4) for two.")
    for head in heads:
        if isinstance(head, bool) or not isinstance(head, int):
            raise TypeError(
                f"ablate(): heads must be integers, got {_shown(head)}. Write ablate(0, 4) for two heads."
            )
    return Ablate(heads)


def cut(rows: Choice, keys: Choice, *, renormalize: bool = False) -> Edit:
    """Cut the edges between two groups of tokens: these queries no longer look at those keys.

    Args:
        rows: Indices of queries: a number, a slice, a list, an integer tensor, or a bool tensor (L,).
        keys: Indices of keys, likewise.
        renormalize: Share the lost weight out among the other keys, so that rows keep their sum. A row that
            loses everything, or all but 3e-29 of it in float32, stays 0.

    Raises:
        TypeError: A choice is not as above.

    Cost: one or two passes over each panel.
    """
    for name, choice in (("rows", rows), ("keys", keys)):
        if not isinstance(choice, slice) and not _is_index(choice):
            raise TypeError(
                f"cut(): {name} must be a number, a slice, a list of numbers, or an integer or bool tensor, "
                f"got {_shown(choice)}."
            )
    return Cut(_own(rows), _own(keys), renormalize)


def without_sink(keys: int = 1) -> Edit:
    """Set the first keys aside and renormalize: what do heads look at, apart from the attention sink?

    Args:
        keys: How many of the first keys are sinks.

    A row that looks at nothing else, or at less than 3e-29 of it in float32, becomes 0. Source: Xiao et al.,
    "Efficient Streaming Language Models with Attention Sinks" (2023). Cost: two passes over each panel.
    """
    if isinstance(keys, bool) or not isinstance(keys, int) or keys < 1:
        raise ValueError(
            f"without_sink(): keys must be an integer of at least 1, got {_shown(keys)}. "
            "Write edit=without_sink() to set the first key aside."
        )
    return WithoutSink(keys)


def _shown(value: object) -> str:
    """What was given; a panel by its name, which comes where the maker itself is given for an edit."""
    return "a Panel" if isinstance(value, Panel) else repr(value)


def _own(choice: Choice) -> Choice:
    """The choice, apart from a tensor, an array or a list that its owner may change."""
    if isinstance(choice, int | slice):
        return choice
    return list(choice) if isinstance(choice, list | tuple | range) else torch.as_tensor(choice).clone()


def _is_index(choice: object) -> bool:
    """Whether it is a number, or several, or a bool per place."""
    try:
        index = torch.as_tensor(choice)
    except (TypeError, ValueError, RuntimeError):
        return False
    empty = not index.numel() and not isinstance(choice, Tensor)
    return empty or not (index.dtype.is_floating_point or index.dtype.is_complex)


def _shared_out(weights: Tensor, before: Tensor) -> Tensor:
    """Rows with the sums they had; 0 where too little is left to divide by, and to divide large gradients by."""
    left = weights.sum(-1, keepdim=True)
    some = left > torch.finfo(left.dtype).tiny ** 0.75
    shares = weights / left.masked_fill(~some, 1)
    return torch.where(some, shares * before.sum(-1, keepdim=True), 0)


def _numbers(index: Index, device: torch.device) -> Tensor:
    return (
        torch.arange(index.start, index.stop, device=device) if isinstance(index, slice) else index.to(device)
    )


def _as_index(choice: Choice) -> slice | Tensor:
    if isinstance(choice, slice):
        return choice
    index = torch.as_tensor(choice)
    if not index.numel() and not isinstance(choice, Tensor):
        index = index.long()  # an empty list
    return index if index.dim() else index[None]


def _among(numbers: Tensor, choice: Choice, size: int) -> Tensor:
    """Which of these numbers are chosen among `size`, bool."""
    chosen = torch.zeros(size, dtype=torch.bool, device=numbers.device)
    index = _as_index(choice)
    chosen[index.to(numbers.device) if isinstance(index, Tensor) else index] = True
    return chosen[numbers]
