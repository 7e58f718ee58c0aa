"""Every backend against the truth: output, answers, and the gradient of every tensor."""

import pytest
import torch

from calls import LONGER, SMALL
from cases import DTYPES, Case, every, every_backend, made, name_of
from heedful import Entropy, LogSumExp, MaxLogit
from oracle import assert_equals_truth

QUESTIONS = (Entropy(), LogSumExp(), MaxLogit())


def slow_but(*fast: torch.dtype) -> list:
    """All dtypes as parameters, those not named marked as slow."""
    return [
        pytest.param(dtype, id=name_of(dtype), marks=[pytest.mark.slow] * (dtype not in fast))
        for dtype in DTYPES
    ]


def finite_only(x: torch.Tensor) -> torch.Tensor:
    """x, with the -inf of rows that see nothing taken out of a loss."""
    return x.masked_fill(~torch.isfinite(x), 0)


def check(case: Case, dtype: torch.dtype, backend: str, questions: bool) -> None:
    problem = made(case, dtype)
    inputs = problem.inputs()
    output, weights = problem.attend(inputs, backend, reduce=QUESTIONS if questions else ())
    found, losses = {"output": output}, [(output, problem.grads[0])]
    if questions:
        found |= {
            "entropy": weights.entropy(),
            "logsumexp": weights.logsumexp(),
            "max_logit": weights.max_logit(),
        }
        losses += [(found["entropy"], problem.grads[1]), (finite_only(found["logsumexp"]), problem.grads[2])]
    torch.autograd.backward(*zip(*losses, strict=True))
    found |= {f"{name}.grad": tensor.grad for name, tensor in inputs.items()}
    expected, baseline = problem.truth(questions), problem.baseline(questions)
    for name, actual in found.items():
        assert actual is not None, f"{name} is None"
        assert_equals_truth(actual, expected[name], baseline[name], name)


@every_backend
@pytest.mark.parametrize("dtype", slow_but(torch.float64, torch.bfloat16))
@every(SMALL)
def test_output_and_gradients(case: Case, dtype: torch.dtype, backend: str) -> None:
    check(case, dtype, backend, questions=False)


@every_backend
@pytest.mark.parametrize("dtype", slow_but(torch.float32))
@every(SMALL)
def test_answers_in_the_same_pass_and_gradients_through_them(
    case: Case, dtype: torch.dtype, backend: str
) -> None:
    check(case, dtype, backend, questions=True)


@every_backend
@every(LONGER)
def test_lengths_around_panels_and_pieces(case: Case, backend: str) -> None:
    check(case, torch.float32, backend, questions=True)


@pytest.mark.slow
@every_backend
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=name_of)
@every(LONGER)
def test_lengths_around_panels_and_pieces_in_other_dtypes(
    case: Case, dtype: torch.dtype, backend: str
) -> None:
    check(case, dtype, backend, questions=True)
