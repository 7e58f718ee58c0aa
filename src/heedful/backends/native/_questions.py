"""Which reductions the kernel answers, and how its answers become theirs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..._call import Call
from ...reductions import (
    ByKey,
    DistanceProfile,
    Entropy,
    Full,
    KeyColumns,
    LogSumExp,
    Mass,
    MaxLogit,
    MeanDistance,
    Pooled,
    QueryRows,
    Received,
    Reduction,
    SinkShare,
    TopK,
)
from ...reductions._keys import TransposedProduct
from ...reductions._protocol import value_norms
from .. import plain
from ._run import Answers, Map, Wanted, backward, empty, forward

# What the gradient reaches; a reduction that needs more is asked elsewhere where a gradient is recorded.
DIFFERENTIABLE = frozenset(("logsumexp", "entropy", "received_sum", "received_count", "topk"))
# Reductions that want just one answer of the kernel.
ONE: dict[type, str] = {
    LogSumExp: "logsumexp",
    SinkShare: "logsumexp",
    Entropy: "entropy",
    Mass: "mass",
    MeanDistance: "mean_distance",
    Full: "weights",
}
MADE_OF: dict[type, tuple[str, ...]] = {
    **{kind: (name,) for kind, name in ONE.items()},
    MaxLogit: ("max_logit",),
    DistanceProfile: ("profile", "max_logit"),
    TopK: ("topk",),
    ByKey: ("carried_sum",),
    KeyColumns: ("carried_sum",),
    QueryRows: ("rows",),
}
NOT_BY_NAME = frozenset(("topk", "carried_sum", "rows", "transposed"))
LARGEST_MAP = 2**16  # elements: every thread keeps one of its own


def names(reduction: Reduction) -> tuple[str, ...] | None:
    """The answers of the kernel that a reduction is made of; None: the kernel does not know it."""
    match reduction:
        case Received(how="mean"):
            return ("received_sum", "received_count")
        case Received():
            return (f"received_{reduction.how}",)
        case Pooled():
            fits = reduction.rows * reduction.cols <= LARGEST_MAP
            return ({"mass": "map_sum", "max": "map_max"}[reduction.how],) if fits else None
        case TransposedProduct():
            # The gradient of what it is multiplied with is left to the panels.
            return None if torch.is_grad_enabled() and reduction.y.requires_grad else ("transposed",)
    return MADE_OF.get(type(reduction))


class Plan:
    """What to ask the kernel for some reductions, in one pass.

    Attributes:
        wanted: What is asked.
        now: Reductions that this pass answers.
        later: Reductions that need another pass: maps of another size.
        others: Reductions that the kernel does not answer, or not their gradient where one is recorded.
    """

    def __init__(self, call: Call, reductions: Sequence[Reduction], output: bool, recorded: bool):
        self.call = call
        self.now, self.later, self.others = list[Reduction](), list[Reduction](), list[Reduction]()
        self.columns: dict[Reduction, Tensor] = {}
        needed: dict[str, None] = {}
        topk, pooled = 0, None
        for each in reductions:
            made_of = names(each)
            if made_of is None or (recorded and not DIFFERENTIABLE.issuperset(made_of)):
                self.others.append(each)
                continue
            match each:
                case TopK():
                    topk = max(topk, each.k)
                case Pooled():
                    pooled = pooled or each
                    if _size(each) != _size(pooled):
                        self.later.append(each)
                        continue
                case ByKey() | KeyColumns():
                    self.columns[each] = _columns(each, call)
            self.now.append(each)
            for name in made_of:
                needed[name] = None
        self.wanted = Wanted(
            [name for name in needed if name not in NOT_BY_NAME],
            topk,
            output,
            _side_by_side(list(self.columns.values())) if self.columns else None,
            None if pooled is None else _map(pooled, call),
        )

    @property
    def empty(self) -> bool:
        """Whether no pass is needed."""
        wanted = self.wanted
        return not (wanted.names or wanted.topk or wanted.output or wanted.carried is not None)

    def answer(self, reduction: Reduction, found: Answers) -> Any:
        """The answer of a reduction of this pass from those of the kernel."""
        return reduction.finish(self._total(reduction, found), self.call)

    def _total(self, reduction: Reduction, found: Answers) -> Any:
        name = ONE.get(type(reduction))
        if name is not None:
            return found[name]
        match reduction:
            case TopK():
                both = found["topk_weight"], found["topk_key"]
                return both if reduction.k == self.wanted.topk else tuple(x[..., : reduction.k] for x in both)
            case Received():
                return self._received(reduction, found)
            case MaxLogit():
                rows = found["max_logit"]
                if reduction.per == "query":
                    return rows
                return rows.amax(-1) if rows.shape[-1] else rows.new_full(rows.shape[:2], -torch.inf)
            case DistanceProfile():
                return found["profile"], (found["max_logit"] > -torch.inf).sum(-1).float()
            case Pooled(how="max"):
                return found["map_max"]
            case Pooled():
                assert self.wanted.map is not None
                queries = torch.bincount(self.wanted.map.row, minlength=reduction.rows)
                return found["map_sum"], queries.float()
            case ByKey() | KeyColumns():
                return self._carried(reduction, found)
            case QueryRows():
                return self._query_rows(reduction)
            case TransposedProduct():
                return _transposed(self.call, reduction.y)
        raise AssertionError(reduction)

    def _received(self, reduction: Received, found: Answers) -> Tensor | tuple[Tensor, Tensor]:
        total = found["received_max" if reduction.how == "max" else "received_sum"]
        if reduction.by_value_norm:
            total = total * _norms(self.call).masked_fill(total == 0, 0)
        return (total, found["received_count"]) if reduction.how == "mean" else total

    def _carried(self, reduction: Reduction, found: Answers) -> Tensor:
        before = 0
        for each, columns in self.columns.items():
            if each == reduction:
                break
            before += columns.shape[-1]
        width = self.columns[reduction].shape[-1]
        if not width:
            return empty(*self.call.rows.shape, 0)
        answer = found["carried_sum"][..., before : before + width]
        if isinstance(reduction, KeyColumns) and bool(answer.isnan().any()):
            return plain(self.call, (reduction,)).answers[
                0
            ]  # 0 * NaN is NaN: a column must not take it from another
        return answer

    def _query_rows(self, reduction: QueryRows) -> Tensor:
        B, H, _ = self.call.rows.shape
        queries = torch.tensor(reduction.check(self.call.query.shape[2]), dtype=torch.int64, device="cpu")
        chosen = self.call.select(slice(0, B), slice(0, H), queries)
        return forward(chosen, Wanted(("weights",), output=False))["weights"]


def _size(reduction: Pooled) -> tuple[int, int, bool]:
    return reduction.rows, reduction.cols, reduction.by_value_norm


def _map(reduction: Pooled, call: Call) -> Map:
    row, column = reduction.blocks(call)
    scale = _norms(call).detach().contiguous() if reduction.by_value_norm else None
    return Map(reduction.rows, reduction.cols, row.int(), column.int(), scale)


def _columns(reduction: ByKey | KeyColumns, call: Call) -> Tensor:
    """What the weights are to be multiplied by for a reduction, (1 or B, S, C) bool."""
    if isinstance(reduction, ByKey):
        return reduction.columns(call.rows)
    chosen = torch.tensor(reduction.check(call.rows.num_keys), dtype=torch.int64, device="cpu")
    return (call.rows.key_positions(range(call.rows.num_keys))[:, None] == chosen)[None]


def _side_by_side(columns: list[Tensor]) -> Tensor | None:
    """Matrices (1 or B, S, C) as one, or None where there is none."""
    columns = [each for each in columns if each.shape[-1]]
    if not columns:
        return None
    batch = max(len(each) for each in columns)
    return torch.cat([each.expand(batch, -1, -1) for each in columns], -1).float().contiguous()


def _norms(call: Call) -> Tensor:
    """Lengths of the value rows, (B, H, S)."""
    norms = value_norms(call.value.float())
    return norms.repeat_interleave(call.query.shape[1] // max(norms.shape[1], 1), 1)


def _transposed(call: Call, y: Tensor) -> Tensor:
    """weights.mT @ y, which is how a gradient reaches the values."""
    per_group = call.query.shape[1] // max(call.key.shape[1], 1)
    key = call.key.repeat_interleave(per_group, 1)
    value = y.new_empty(1).expand(*key.shape[:3], y.shape[-1])
    call = replace(call, key=key, value=value)
    found = forward(call, Wanted(("row_state",), output=False))
    return backward(call, found["row_state"], {"output": y.detach()}, ("value",))["value"]
