"""The gradient of the fold: each panel is computed again, used and dropped."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_unflatten

from ..._call import Call, TensorBias
from ..._checks import tensors_of
from ...reductions import Panel, Reduction
from ...reductions._protocol import dot_rows
from .. import _exact
from .._dropout import keep_scale
from .._product import transposed_matmul
from .fold import Buffers, attend, grouped, scaled_query
from .plan import Part, plan

if TYPE_CHECKING:
    from . import Job

# A reduction, its answers, and the gradients of those.
Asked = tuple[Reduction, list[Tensor], list[Tensor | None]]


def gradient(
    job: "Job", results: list[Tensor | None], grads: tuple[Tensor | None, ...]
) -> list[Tensor | None]:
    """Gradients of `job.tensors`, from the results of the fold and the gradients of those."""
    found = _gradient(job, results, grads, careful=False)
    if not all(tensor is None or _exact.all_finite(tensor) for tensor in found):
        found = _gradient(job, results, grads, careful=True)
    return found


class Sums:
    """The growing gradient of each tensor; None for those that need none."""

    def __init__(self, tensors: tuple[Tensor, ...], dtype: torch.dtype):
        self.tensors = tensors
        self.totals = {id(x): torch.zeros_like(x, dtype=dtype) for x in tensors if x.requires_grad}

    def of(self, tensor: Tensor | None) -> Tensor | None:
        return self.totals.get(id(tensor))

    def result(self) -> list[Tensor | None]:
        return [None if (total := self.of(x)) is None else total.to(x.dtype) for x in self.tensors]


def _gradient(
    job: "Job", results: list[Tensor | None], grads: tuple[Tensor | None, ...], careful: bool
) -> list[Tensor | None]:
    call = job.call
    output_grad, *answer_grads = tree_unflatten(list(grads), job.spec)
    _, *answers = tree_unflatten(results, job.spec)
    asked = [
        (reduction, tree_leaves(answer), tree_leaves(grad))
        for reduction, answer, grad in zip(job.reductions, answers, answer_grads, strict=True)
        if any(leaf is not None for leaf in tree_leaves(grad))
    ]
    sums = Sums(job.tensors, call.dtype)
    buffers = Buffers(True, call.dtype, call.query.device)
    for part in plan(call):
        _add_panel(job, part, output_grad, asked, sums, buffers, careful)
    return sums.result()


def _add_panel(
    job: "Job",
    part: Part,
    output_grad: Tensor | None,
    asked: list[Asked],
    sums: Sums,
    buffers: Buffers,
    careful: bool,
) -> None:
    """Add what one panel contributes to every gradient."""
    call = job.call
    finished = bool(asked or call.edits or call.sinks is not None or careful)
    panel = attend(call, part, buffers, careful, finished)
    query, key, value = scaled_query(call, part), part.of_keys(call.key), panel.value
    if careful:
        query, key, value = map(_exact.finite, (query, key, value))
    weights_grad = kept_grad = None
    if output_grad is not None:
        kept_grad = grouped(part.of_rows(output_grad), part)
        weights_grad = buffers.matmul(kept_grad, value.mT, "gradient").view(panel.weights.shape)
        if call.dropout_p:
            weights_grad.mul_(keep_scale(call, part.rows, panel.keys))
    used = panel.weights
    logits_grad = logsumexp_grad = None
    if asked or call.edits:
        used, weights_grad, logits_grad, logsumexp_grad = _through_questions(
            job, part, panel, weights_grad, asked, sums
        )
    if kept_grad is not None and (total := sums.of(call.value)) is not None:
        if call.dropout_p:
            used = used * keep_scale(call, part.rows, panel.keys)
        part.add_to_keys(total, transposed_matmul(grouped(used, part), kept_grad))
    scores_grad = _through_softmax(
        call, part, panel, weights_grad, logits_grad, logsumexp_grad, sums, buffers
    )
    if careful:  # a row that sees a NaN has one everywhere
        scores_grad = scores_grad.masked_fill(panel.logits == torch.finfo(call.dtype).min, 0)
    _to_bias(call, part, scores_grad, sums)
    scores_grad = grouped(scores_grad, part)
    if call.softcap is not None:
        scores_grad = scores_grad * (
            1 - torch.tanh(buffers.matmul(query, key.mT, "capped") / call.softcap) ** 2
        )
    if (total := sums.of(call.query)) is not None:
        query_grad = buffers.matmul(scores_grad, key).view(*part.rows.shape, key.shape[-1])
        total[part.batch, part.heads, part.index] = query_grad * call.scale
    if (total := sums.of(call.key)) is not None:
        part.add_to_keys(total, transposed_matmul(scores_grad, query))


def _through_questions(
    job: "Job",
    part: Part,
    panel: Panel,
    weights_grad: Tensor | None,
    asked: list[Asked],
    sums: Sums,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Back through edits and reductions, by autograd on this panel alone.

    Returns the edited weights, and the gradients of the panel's weights, logits and logsumexp.
    """
    leaves = [
        x.detach().requires_grad_() for x in (panel.weights, panel.logits, panel.logsumexp, panel.value)
    ]
    with torch.enable_grad():
        weights, logits, logsumexp, value = leaves
        local = replace(
            panel, weights=weights, logits=logits, logsumexp=logsumexp, value=value, scratch=None
        ).edited_by(job.call.edits)
        outputs = [(local.weights, weights_grad)]
        for reduction, answers, grads in asked:
            contributions = tree_leaves(reduction.panel(local))
            for contribution, answer, grad in zip(contributions, answers, grads, strict=True):
                if grad is not None and contribution.requires_grad:
                    outputs.append((contribution, _of_part(reduction, part, contribution, answer, grad)))
    outputs = [(x, grad) for x, grad in outputs if grad is not None and x.requires_grad]
    closed_over = [x for x in job.closed_over if sums.of(x) is not None]
    if outputs:
        found = torch.autograd.grad(
            [x for x, _ in outputs], [*leaves, *closed_over], [grad for _, grad in outputs], allow_unused=True
        )
    else:
        found = [None] * (len(leaves) + len(closed_over))
    for x, grad in zip(closed_over, found[4:], strict=True):
        if grad is not None:
            sums.of(x).add_(grad)
    if found[3] is not None and (total := sums.of(job.call.value)) is not None:
        part.add_to_keys(total, found[3])
    # Cloned: what autograd gives may be expanded, or somebody else's, and is changed in place below.
    weights_grad, logits_grad, logsumexp_grad = (None if grad is None else grad.clone() for grad in found[:3])
    return local.weights.detach(), weights_grad, logits_grad, logsumexp_grad


def _of_part(reduction: Reduction, part: Part, contribution: Tensor, answer: Tensor, grad: Tensor) -> Tensor:
    """The gradient of one panel's contribution, from that of the merged answer."""

    def place(x: Tensor) -> Tensor:
        if reduction.place == "rows":
            return part.of_rows(x)
        x = x[part.batch, part.heads]
        if reduction.place == "heads":
            return x
        return torch.cat([x[:, :, span.start : span.stop] for span in part.spans], 2)

    if reduction.place == "rows" or reduction.merge == "sum":
        return place(grad)
    return torch.where(contribution.detach() == place(answer), place(grad), 0)


def _through_softmax(
    call: Call,
    part: Part,
    panel: Panel,
    weights_grad: Tensor | None,
    logits_grad: Tensor | None,
    logsumexp_grad: Tensor | None,
    sums: Sums,
    buffers: Buffers,
) -> Tensor:
    """The gradient of the masked, biased scores (batch, heads, rows, keys)."""
    weights = panel.weights
    row_grad = torch.zeros_like(panel.logsumexp) if logsumexp_grad is None else logsumexp_grad
    if weights_grad is None:
        scores_grad = weights * row_grad[..., None]
    else:
        row_grad = row_grad - dot_rows(weights, weights_grad, buffers.get("scratch", *weights.shape))
        scores_grad = weights_grad.add_(row_grad[..., None]).mul_(weights)
    if (total := sums.of(call.sinks)) is not None:
        sink_weight = (call.sinks.to(call.dtype)[part.heads, None] - panel.logsumexp).exp()
        total[part.heads] += (sink_weight * row_grad).sum((0, 2))
    if logits_grad is not None:
        for columns, hidden in part.masked:
            logits_grad[..., columns].masked_fill_(hidden, 0)
        scores_grad = scores_grad + logits_grad
    return scores_grad


def _to_bias(call: Call, part: Part, scores_grad: Tensor, sums: Sums) -> None:
    """Add the gradient of the scores to that of the biases."""
    column = 0
    for span in part.spans:
        of_span = scores_grad[..., column : column + len(span)]
        column += len(span)
        for term in call.bias:
            wanted = [tensor for tensor in tensors_of(term) if sums.of(tensor) is not None]
            if not wanted:
                continue
            total = sums.of(wanted[0])
            if isinstance(term, TensorBias) and part.rows.is_view and total is not None:
                place = part.rows.of(total, span)
                place.add_(of_span.sum_to_size(place.shape))
                continue
            with torch.enable_grad():
                bias = term.bias(part.rows, span)
            found = torch.autograd.grad(
                bias, wanted, of_span.sum_to_size(bias.shape).to(bias.dtype), allow_unused=True
            )
            for tensor, grad in zip(wanted, found, strict=True):
                if grad is not None:
                    sums.of(tensor).add_(grad)
