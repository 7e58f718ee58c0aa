"""Lazy equals dense: every question to the weights, and its gradient, against the same question to the matrix."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from calls import causal, near, with_rule
from cases import Case, every, every_backend, made, padded
from heedful import masks
from oracle import Numbers, assert_equals_truth, precise
from questions import Matrix, Question, questions

SIZES = {"B": 2, "H": 6, "G": 2, "L": 5, "S": 9, "E": 4, "Ev": 3}
CASES = [
    Case("no mask", **SIZES),
    with_rule(
        lambda c: lambda b, j, p, **_: (j <= p) & padded(c)[b, j],
        name="causal and padding, empty rows, a start per item",
        query_start=(-2, 6),
        mask=lambda c: masks.causal() & masks.padding(padded(c)),
        **SIZES,
    ),
    Case("bias of -inf, softcap, sinks", bias=(1, 6, 5, 9), forbid=0.3, softcap=2.0, sinks=True, **SIZES),
    Case(
        "window, sinks, nobody for some",
        query_start=-3,
        mask=lambda c: masks.window(2),
        keep=near(2, 0),
        sinks=True,
        **SIZES,
    ),
    Case(
        "several panels, two stretches of keys",
        **{**SIZES, "H": 2, "L": 150, "S": 640},
        query_start=300,
        mask=lambda c: masks.window(40, 9) | masks.prefix(3),
        keep=lambda j, p, **_: ((j > p - 40) & (j <= p + 9)) | (j < 3),
    ),
    Case(
        "several panels, heads apart",
        **{**SIZES, "B": 1, "H": 12, "G": 4, "L": 140, "S": 400},
        mask=lambda c: masks.causal(),
        keep=causal,
    ),
]
ASKED = [(case, question) for case in CASES for question in questions(case.B, case.H, case.G, case.L, case.S)]
EACH = pytest.mark.parametrize(("case", "question"), ASKED, ids=lambda x: x.name)


def coefficients(answer: Tensor) -> Tensor:
    """The gradient of the loss with respect to an answer."""
    return torch.randn(answer.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def loss_of(answer: Tensor) -> Tensor:
    return (answer.masked_fill(answer.isinf(), 0) * coefficients(answer).to(answer.dtype)).sum()


def grads_of(loss: Tensor, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradient of every tensor, zeros where the loss does not depend on it."""
    if not loss.requires_grad:
        return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    grads = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True)
    return {
        name: torch.zeros_like(tensor) if grad is None else grad
        for (name, tensor), grad in zip(tensors.items(), grads, strict=True)
    }


@cache
def dense(case: Case, question: Question, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
    """The answer from the matrix computed in `dtype`, and the gradients of its loss."""
    problem = made(case, torch.float32)
    tensors = {name: x.detach().to(dtype).requires_grad_() for name, x in problem.problem.tensors.items()}
    answer = question.dense(Matrix.of(problem, tensors, dtype))
    return answer.detach(), grads_of(loss_of(answer), tensors)


def check_answer(case: Case, question: Question, answer: Tensor) -> None:
    truth, baseline = (dense(case, question, dtype)[0] for dtype in (torch.float64, torch.float32))
    assert_equals_truth(answer.detach(), numbers(truth, [truth]), baseline, question.name)


def check_grads(case: Case, asked: list[Question], grads: dict[str, Tensor]) -> None:
    """Gradients of the sum of the losses of some questions; each adds its rounding, and the sum its own."""
    truth, baseline = ([dense(case, q, dtype) for q in asked] for dtype in (torch.float64, torch.float32))
    for name, actual in grads.items():
        expected = [grads[name] for _, grads in truth]
        entered = [*map(coefficients, (answer for answer, _ in truth)), *expected]
        errors = [(grads[name] - each).abs() for (_, grads), each in zip(baseline, expected, strict=True)]
        rough = (sum(expected) + len(asked) ** 0.5 * sum(errors)).to(actual.dtype)
        assert_equals_truth(actual, numbers(sum(expected), entered), rough, f"the gradient of {name}")


def numbers(truth: Tensor, entered: list[Tensor]) -> Numbers:
    """A result, with the largest number that entered it for a magnitude."""
    largest = max(float(x.masked_fill(x.isinf(), 0).abs().max()) for x in entered)
    return Numbers(precise(truth), np.full(tuple(truth.shape), largest))


@every_backend
@EACH
def test_asked_afterwards(case: Case, question: Question, backend: str) -> None:
    inputs = made(case, torch.float32).inputs()
    _, weights = made(case, torch.float32).attend(inputs, backend)
    answer = question.ask(weights)
    check_answer(case, question, answer)
    check_grads(case, [question], grads_of(loss_of(answer), inputs))


@every_backend
@every(CASES)
def test_asked_in_the_call_all_at_once(case: Case, backend: str) -> None:
    inputs = made(case, torch.float32).inputs()
    asked = [q for q in questions(case.B, case.H, case.G, case.L, case.S) if q.reduction]
    _, weights = made(case, torch.float32).attend(inputs, backend, reduce=[q.reduction for q in asked])
    answers = [question.ask(weights) for question in asked]
    for question, answer in zip(asked, answers, strict=True):
        check_answer(case, question, answer)
    check_grads(case, asked, grads_of(sum(map(loss_of, answers)), inputs))
