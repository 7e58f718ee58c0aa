"""Which reductions the kernel answers, and how its answers become theirs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

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

LARGEST_MAP = 2**16  # elements: every thread keeps one of its own


class Known(NamedTuple):
    """How the kernel answers a reduction.

    Attributes:
        names: The answers of the kernel, by name, that it is made of.
        total: (reduction, found, plan) -> what `reduction.finish` takes; None: the answer of the one name.
        differentiable: Whether a gradient goes through it; if not, it is asked elsewhere where one is recorded.
    """

    names: tuple[str, ...] = ()
    total: Callable[[Any, Answers, "Plan"], Any] | None = None
    differentiable: bool = False


class Plan:
    """What to ask the kernel for some reductions, in one pass.

    Attributes:
        wanted: What is asked.
        now: Reductions that this pass answers, and how.
        later: Reductions that need another pass: maps of another size.
        others: Reductions that the kernel does not answer, or not their gradient where one is recorded.
        columns: What the weights are multiplied by for a reduction.
    """

    def __init__(self, call: Call, reductions: Sequence[Reduction], output: bool, recorded: bool):
        self.call = call
        self.now: dict[Reduction, Known] = {}
        self.later, self.others = list[Reduction](), list[Reduction]()
        self.columns: dict[Reduction, Tensor] = {}
        names: dict[str, None] = {}
        topk, pooled = 0, None
        for each in reductions:
            how = known(each)
            if how is None or (recorded and not how.differentiable):
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
            self.now[each] = how
            names |= dict.fromkeys(how.names)
        carried = _side_by_side(list(self.columns.values()))
        self.wanted = Wanted(
            tuple(names), topk, output, carried, None if pooled is None else _map(pooled, call)
        )

    @property
    def empty(self) -> bool:
        """Whether no pass is needed."""
        wanted = self.wanted
        return not (wanted.names or wanted.topk or wanted.output or wanted.carried is not None)

    def answer(self, reduction: Reduction, found: Answers) -> Any:
        """The answer of a reduction of this pass from those of the kernel."""
        how = self.now[reduction]
        total = found[how.names[0]] if how.total is None else how.total(reduction, found, self)
        return reduction.finish(total, self.call)


def known(reduction: Reduction) -> Known | None:
    """How the kernel answers a reduction; None: it does not."""
    match reduction:
        case Pooled() if reduction.rows * reduction.cols > LARGEST_MAP:
            return None
        case Received() | Pooled():
            return KNOWN.get((type(reduction), reduction.how))
        case TransposedProduct() if torch.is_grad_enabled() and reduction.y.requires_grad:
            return None  # the gradient of what it is multiplied with is left to the panels
    return KNOWN.get(type(reduction))


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


def _topk(reduction: TopK, found: Answers, plan: Plan) -> tuple[Tensor, ...]:
    both = found["topk_weight"], found["topk_key"]
    return both if reduction.k == plan.wanted.topk else tuple(x[..., : reduction.k] for x in both)


def _max_logit(reduction: MaxLogit, found: Answers, plan: Plan) -> Tensor:
    rows = found["max_logit"]
    if reduction.per == "query":
        return rows
    return rows.amax(-1) if rows.shape[-1] else rows.new_full(rows.shape[:2], -torch.inf)


def _profile(reduction: DistanceProfile, found: Answers, plan: Plan) -> tuple[Tensor, Tensor]:
    return found["profile"], (found["max_logit"] > -torch.inf).sum(-1).float()


def _received(reduction: Received, found: Answers, plan: Plan) -> Tensor | tuple[Tensor, Tensor]:
    total = found["received_max" if reduction.how == "max" else "received_sum"]
    if reduction.by_value_norm:
        total = total * _norms(plan.call).masked_fill(total == 0, 0)
    return (total, found["received_count"]) if reduction.how == "mean" else total


def _mass_map(reduction: Pooled, found: Answers, plan: Plan) -> tuple[Tensor, Tensor]:
    assert plan.wanted.map is not None
    return found["map_sum"], torch.bincount(plan.wanted.map.row, minlength=reduction.rows).float()


def _carried(reduction: ByKey | KeyColumns, found: Answers, plan: Plan) -> Tensor:
    before = 0
    for each, columns in plan.columns.items():
        if each == reduction:
            break
        before += columns.shape[-1]
    width = plan.columns[reduction].shape[-1]
    if not width:
        return empty(*plan.call.rows.shape, 0)
    answer = found["carried_sum"][..., before : before + width]
    if isinstance(reduction, KeyColumns) and bool(answer.isnan().any()):
        # 0 * NaN is NaN: a column must not take it from another
        return plain(plan.call, (reduction,)).answers[0]
    return answer


def _query_rows(reduction: QueryRows, found: Answers, plan: Plan) -> Tensor:
    B, H, _ = plan.call.rows.shape
    queries = torch.tensor(reduction.check(plan.call.query.shape[2]), dtype=torch.int64, device="cpu")
    chosen = plan.call.select(slice(0, B), slice(0, H), queries)
    return forward(chosen, Wanted(("weights",), output=False))["weights"]


def _transposed(reduction: TransposedProduct, found: Answers, plan: Plan) -> Tensor:
    """weights.mT @ y, which is how a gradient reaches the values."""
    call, y = plan.call, reduction.y
    per_group = call.query.shape[1] // max(call.key.shape[1], 1)
    key = call.key.repeat_interleave(per_group, 1)
    value = y.new_empty(1).expand(*key.shape[:3], y.shape[-1])
    call = replace(call, key=key, value=value)
    found = forward(call, Wanted(("row_state",), output=False))
    return backward(call, found["row_state"], {"output": y.detach()}, ("value",))["value"]


KNOWN: dict[type | tuple[type, str], Known] = {
    LogSumExp: Known(("logsumexp",), differentiable=True),
    SinkShare: Known(("logsumexp",), differentiable=True),
    Entropy: Known(("entropy",), differentiable=True),
    Mass: Known(("mass",)),
    MeanDistance: Known(("mean_distance",)),
    Full: Known(("weights",)),
    MaxLogit: Known(("max_logit",), _max_logit),
    DistanceProfile: Known(("profile", "max_logit"), _profile),
    TopK: Known((), _topk, differentiable=True),
    (Received, "sum"): Known(("received_sum",), _received, differentiable=True),
    (Received, "mean"): Known(("received_sum", "received_count"), _received, differentiable=True),
    (Received, "max"): Known(("received_max",), _received),
    (Pooled, "mass"): Known(("map_sum",), _mass_map),
    (Pooled, "max"): Known(("map_max",)),
    ByKey: Known((), _carried),
    KeyColumns: Known((), _carried),
    QueryRows: Known((), _query_rows),
    TransposedProduct: Known((), _transposed),
}
