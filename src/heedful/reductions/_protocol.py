"""Questions to ask of the weights while they pass.

Attention is computed panel by panel, and a panel's weights are gone when the next one comes. A reduction says what one
panel contributes to the answer, and where that belongs:

    place = "rows"    one answer per query: `panel` returns (B, H, rows, ...), set at its rows
    place = "keys"    one answer per key: (B, H, keys, ...), merged at its keys
    place = "heads"   one answer per head: (B, H, ...), merged over all panels

`merge` is "sum" or "max". Gradients follow from that, also for a reduction of your own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from .._rows import Rows

Edit = Callable[["Panel"], Tensor]

PIECE = 2**18  # numbers of a panel at a time, on the CPU: products are summed while the cache still has them


@dataclass(frozen=True, eq=False)
class Panel:
    """Some query rows against all the keys they may see: exact, normalized weights.

    Attributes:
        weights: (B, H, rows, keys), after edits and before dropout.
        logits: (B, H, rows, keys), the scores the weights come from: scaled, capped, biased. A masked pair
            holds the lowest finite number, so that its weight times its logit is 0; no other pair holds it.
        logsumexp: (B, H, rows), the natural log of the whole denominator.
        rows: Which rows these are.
        spans: The ranges of keys, in order; a panel has the keys of all of them side by side.
        value: (B, G, keys, Ev), the value rows of these keys.
        call: The call it is a part of.
        place: Batch, head and row slices: where the panel lies in the tensors of the call.
        scratch: Memory of the shape of `weights` to work in, where nothing is recorded for gradients; else None.
        edited: Whether `weights` differ from exp(logits - logsumexp).
    """

    weights: Tensor
    logits: Tensor
    logsumexp: Tensor
    rows: Rows
    spans: tuple[range, ...]
    value: Tensor
    call: Any
    place: tuple[slice, slice, slice]
    scratch: Tensor | None = None
    edited: bool = False

    def edited_by(self, edits: Sequence[Edit]) -> "Panel":
        """The panel after these edits, in order."""
        panel = self
        for edit in edits:
            weights = edit(panel)
            if (
                not isinstance(weights, Tensor)
                or weights.shape != self.weights.shape
                or weights.dtype != self.weights.dtype
            ):
                shown = (
                    f"{weights.dtype} {tuple(weights.shape)}"
                    if isinstance(weights, Tensor)
                    else type(weights).__name__
                )
                raise ValueError(
                    f"edit must return the weights to use, {self.weights.dtype} {tuple(self.weights.shape)} "
                    f"(batch, heads, rows, keys), got {shown}.".replace("torch.", "")
                )
            panel = replace(panel, weights=weights, edited=True)
        return panel

    @cached_property
    def keys(self) -> Tensor:
        """Positions of the keys, (keys,) int64."""
        return torch.cat([self.rows.key_positions(span) for span in self.spans])

    @property
    def value_norms(self) -> Tensor:
        """Length of the value row that each weight carries, (B, H, keys)."""
        norms = value_norms(self.value)
        return norms.repeat_interleave(self.weights.shape[1] // max(norms.shape[1], 1), 1)

    def spread(self, x: Tensor) -> Tensor:
        """Widen the last dimension from the panel's keys to all keys of the call, with 0 where it has none."""
        return spread(x, self.spans, self.rows.num_keys, dim=-1)

    @property
    def visible(self) -> Tensor:
        """Who may see whom, (B, H, rows, keys) bool."""
        return self.logits > torch.finfo(self.logits.dtype).min

    @property
    def distance(self) -> Tensor:
        """How far a key is from its query, int64, broadcastable to (B, H, rows, keys)."""
        return (self.keys - self.rows.positions).abs()


class Reduction:
    """What one panel contributes to an answer, and how contributions merge.

    Subclasses are frozen dataclasses, so that an answer can be found again by equality.

    Keys that none of its queries may see can be missing from a panel. With place = "keys", what is merged holds 0 for a
    key that no panel had, or -inf with merge = "max"; `finish` may put something else there.
    """

    place: Literal["rows", "keys", "heads"] = "rows"
    merge: Literal["sum", "max"] = "sum"
    reads_value: bool = False
    remembered: bool = True

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Tensors the reduction closes over and that gradients must reach."""
        return ()

    def panel(self, panel: Panel) -> Tensor | tuple[Tensor, ...]:
        """The contribution of one panel; a tuple for an answer of several tensors."""
        raise NotImplementedError(f"{type(self).__name__} must define panel(panel)")

    def finish(self, total: Any, call: Any) -> Any:
        """The answer, from the merged contributions of all panels."""
        return total


def dot_rows(x: Tensor, y: Tensor, scratch: Tensor | None) -> Tensor:
    """(x * y).sum(-1), some rows at a time in the beginning of `scratch`, if there is any; all have one shape."""
    if scratch is None:
        return (x * y).sum(-1)
    pieces = min(max(1, x.numel() // PIECE), max(1, x.shape[-2])) if x.is_cpu else 1
    total, room = x.new_empty(x.shape[:-1]), scratch.flatten()
    # Rows from everywhere in each piece: torch halves it among the threads, and they meet the rows they had before.
    for n in range(pieces):
        some, other = x[..., n::pieces, :], y[..., n::pieces, :]
        product = torch.mul(some, other, out=room[: some.numel()].view(some.shape))
        torch.sum(product, -1, out=total[..., n::pieces])
    return total


def value_norms(value: Tensor) -> Tensor:
    """Length of each row, (..., keys); a row that is not finite has the length NaN and takes no gradient."""
    finite = (value.detach() * 0).sum(-1) == 0
    norms = torch.linalg.vector_norm(torch.where(finite[..., None], value, 0), dim=-1)
    return torch.where(finite, norms, torch.nan)


def spread(x: Tensor, spans: tuple[range, ...], num_keys: int, dim: int, nothing: float = 0.0) -> Tensor:
    """Widen a dimension of the panel's keys to all keys of the call, with `nothing` where the panel has none."""
    pieces, stop = [], 0
    shape = list(x.shape)
    for span, share in zip(spans, x.split([len(span) for span in spans], dim), strict=True):
        shape[dim] = span.start - stop
        pieces += [x.new_full(shape, nothing), share]
        stop = span.stop
    shape[dim] = num_keys - stop
    pieces = [piece for piece in (*pieces, x.new_full(shape, nothing)) if piece.shape[dim]]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)
