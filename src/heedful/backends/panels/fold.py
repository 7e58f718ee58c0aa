"""The fold itself: one panel after another, each with exact weights.

There is one fold and two ways through it: with buffers (fast, not recorded), and without (plain operations, which
autograd, `torch.func` and forward mode can follow).
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..._call import Call
from ...reductions import Panel, Reduction
from .. import _exact
from .._dropout import keep_scale
from .._product import matmul
from .plan import Part, plan
from .totals import Totals


class Buffers:
    """Memory used again by every panel. Switched off, it hands out nothing and operations allocate as usual."""

    def __init__(self, on: bool, dtype: torch.dtype, device: torch.device):
        self.on, self.dtype, self.device = on, dtype, device
        self.flat: dict[str, Tensor] = {}

    def get(self, name: str, *shape: int) -> Tensor | None:
        if not self.on:
            return None
        size = math.prod(shape)
        if name not in self.flat or self.flat[name].numel() < size:
            self.flat[name] = torch.empty(size, dtype=self.dtype, device=self.device)
        return self.flat[name][:size].view(shape)

    def matmul(self, x: Tensor, y: Tensor, name: str | None = None) -> Tensor:
        """x @ y, in the buffer of this name if there is one."""
        if not self.on:
            return x @ y
        return matmul(x, y, out=self.get(name, *x.shape[:-1], y.shape[-1]) if name else None)

    def own(self, x: Any) -> Any:
        """`x`, copied if it is a tensor in a buffer that the next panel overwrites."""
        storage = x.untyped_storage().data_ptr() if self.on and isinstance(x, Tensor) else None
        return (
            x.clone()
            if any(storage == flat.untyped_storage().data_ptr() for flat in self.flat.values())
            else x
        )


def scaled_query(call: Call, part: Part) -> Tensor:
    """The queries of a panel, times the scale, (batch, groups, heads per group * rows, E)."""
    return grouped(part.of_rows(call.query) * call.scale, part)


def grouped(x: Tensor, part: Part) -> Tensor:
    """(batch, heads, rows, ...) -> (batch, groups, heads per group * rows, ...)."""
    batch, heads, rows = part.rows.shape
    groups = part.groups.stop - part.groups.start
    return x.reshape(batch, groups, heads // max(groups, 1) * rows, x.shape[-1])


def attend(call: Call, part: Part, buffers: Buffers, careful: bool, asked: bool = True) -> Panel:
    """The exact weights of one panel, before edits. Unless `asked`, logits and logsumexp are left unfinished."""
    query, key = scaled_query(call, part), part.of_keys(call.key)
    if careful:
        logits = _exact.scores(query, key)
    else:
        logits = buffers.matmul(query, key.mT, "logits")
    logits = logits.view(*part.rows.shape, key.shape[2])
    if call.softcap is not None:
        logits = call.softcap * torch.tanh(logits / call.softcap)
    if call.bias:
        logits = add_biases(logits, call, part, buffers)
    logits = fill_masked(logits, part, -torch.inf, buffers)

    nobody = None
    if not buffers.on and (part.masked or call.bias):
        nobody = logits.amax(-1, keepdim=True) == -torch.inf
        logits = logits.masked_fill(nobody, 0)
    asked = asked or call.sinks is not None
    weights = torch.softmax(logits, -1, out=buffers.get("weights" if asked else "logits", *logits.shape))
    if buffers.on and bool(weights[..., 0].isnan().any()):
        if not asked:  # the logits are overwritten, and tell rows without a key from rows with a NaN
            return attend(call, part, buffers, careful)
        nobody = (logits == -torch.inf).all(-1, keepdim=True)
    if nobody is not None:
        weights = weights.masked_fill(nobody, 0)
    base, above = denominator(logits, weights, nobody, buffers.on) if asked else (logits[..., 0], 0)
    logsumexp = base + above
    if call.sinks is not None:
        sink = call.sinks.to(call.dtype)[part.heads, None]
        logsumexp = torch.logaddexp(logsumexp, sink)
        weights = weights * torch.sigmoid(base - sink + above)[..., None]
    if asked:
        lowest = torch.finfo(call.dtype).min
        logits = logits.masked_fill(nobody, lowest) if nobody is not None else logits
        logits = logits.clamp(min=lowest) if call.bias else fill_masked(logits, part, lowest, buffers)
    return Panel(
        weights,
        logits,
        logsumexp,
        part.rows,
        part.spans,
        part.of_keys(call.value),
        call,
        (part.batch, part.heads, part.index),
        scratch=buffers.get("scratch", *weights.shape) if asked else None,
    )


def denominator(
    logits: Tensor, weights: Tensor, nobody: Tensor | None, buffered: bool
) -> tuple[Tensor, Tensor]:
    """Log of the denominator of each row: any logit less the log of its weight, so a few columns are enough.

    The two come apart: in the sum of a large logit and the log of a weight, the second is rounded away.

    The first columns are the quickest to read. The log of a small weight is rounded coarsely: rows that have no other
    there are looked at again, in columns from everywhere, then in all.
    """
    width = logits.shape[-1]
    columns = [slice(64), slice(None, None, width // 64)] if buffered and width >= 128 else []
    for some in columns:
        largest = weights[..., some].amax(-1)
        if bool((largest > 1e-6).all()):
            break
    else:
        some, largest = slice(None), weights.amax(-1)
    base, above = logits[..., some].amax(-1), -largest.log()
    if nobody is None:
        return base, above
    nobody = nobody.squeeze(-1)
    return base.masked_fill(nobody, -torch.inf), above.masked_fill(nobody, 0)


def add_biases(logits: Tensor, call: Call, part: Part, buffers: Buffers) -> Tensor:
    """Scores plus biases, in which -inf forbids whatever the score or another bias is, NaN too."""
    forbidden = None
    for term in call.bias:
        blocks = [term.bias(part.rows, span).to(call.dtype) for span in part.spans]
        if len(blocks) > 1:
            blocks = [x.expand(*x.shape[:-1], len(span)) for x, span in zip(blocks, part.spans, strict=True)]
        bias = blocks[0] if len(blocks) == 1 else torch.cat(blocks, -1)
        least = float(bias.amin()) if buffers.on and bias.numel() else -math.inf
        if least > -math.inf:
            logits = logits.add_(bias if least > torch.finfo(bias.dtype).min else _exact.lifted(bias))
            continue
        logits = logits + _exact.lifted(bias)
        hidden = bias == -torch.inf
        forbidden = hidden if forbidden is None else forbidden | hidden
    return logits if forbidden is None else logits.masked_fill(forbidden, -torch.inf)


def fill_masked(x: Tensor, part: Part, number: float, buffers: Buffers) -> Tensor:
    """A panel with its masked pairs set to a number, in place where it lies in a buffer."""
    if not part.masked:
        return x
    if buffers.on:
        for columns, hidden in part.masked:
            x[..., columns].masked_fill_(hidden, number)
        return x
    columns = x.split([len(keys) for keys, _ in part.pieces], -1)
    blocks = [block for _, block in part.pieces]
    filled = [
        x.masked_fill(~block, number) if isinstance(block, Tensor) else x
        for x, block in zip(columns, blocks, strict=True)
    ]
    return torch.cat(filled, -1)


def sum_values(call: Call, part: Part, panel: Panel, buffers: Buffers, careful: bool) -> Tensor:
    """weights @ value of one panel after dropout, (batch, heads, rows, Ev)."""
    kept = panel.weights
    if call.dropout_p:
        kept = kept * keep_scale(call, part.rows, panel.keys)
    kept = grouped(kept, part)
    if careful:
        output = _exact.weighted_sum(kept, panel.value, grouped(panel.visible, part))
    else:
        output = buffers.matmul(kept, panel.value)
    return output.view(*part.rows.shape, panel.value.shape[-1])


def fold(call: Call, reductions: tuple[Reduction, ...], need_output: bool, buffered: bool) -> list[Any]:
    """The output (or None) and the merged contributions of every reduction.

    A masked NaN or infinity shows in the output at once, so only then is the fold run again with care.
    """
    results = _fold(call, reductions, need_output, buffered, careful=False)
    if need_output and not _exact.all_finite(results[0]):
        results = _fold(call, reductions, need_output, buffered, careful=True)
    return results


def _fold(
    call: Call, reductions: tuple[Reduction, ...], need_output: bool, buffered: bool, careful: bool
) -> list[Any]:
    buffers = Buffers(buffered, call.dtype, call.query.device)
    num_keys = call.key.shape[2]
    asked = bool(reductions or call.edits or careful)
    totals = [Totals(type(each).__name__, each.place, each.merge, num_keys) for each in reductions]
    output = Totals("output", "rows", "sum", num_keys)
    for part in plan(call):
        panel = attend(call, part, buffers, careful, asked).edited_by(call.edits)
        if need_output:
            output.add(part, sum_values(call, part, panel, buffers, careful))
        for reduction, total in zip(reductions, totals, strict=True):
            total.add(part, tree_map(buffers.own, reduction.panel(panel)))
    return [output.result() if need_output else None, *(total.result() for total in totals)]
