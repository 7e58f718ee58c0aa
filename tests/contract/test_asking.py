"""Asking, in any way, leaves the output and its gradients bit-identical."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import heedful
from calls import LONGER, MASKS, SCORES, SHAPES
from cases import Case, every, every_backend, made, name_of
from heedful import Weights
from questions import questions

NAMED = {case.name: case for case in (*SHAPES, *MASKS, *SCORES, *LONGER)}
CASES = [
    NAMED[name]
    for name in (
        "grouped heads",
        "padding and causal",
        "everything at once",
        "257 queries, 300 keys, causal",
        "1100 keys, two stretches",
    )
]


def ask_everything(weights: Weights) -> None:
    B, H, L, S = weights.shape
    for question in questions(B, H, weights.received(per="kv_head").shape[1], L, S):
        question.ask(weights)
    weights[..., -1, :], weights[0, 0], weights[0, [0, 1], [1, 0], [0, 1]]


def ask_and_differentiate(weights: Weights) -> None:
    (weights.entropy().sum() + weights.received().square().sum() + weights[..., 0, :].sum()).backward()


ASKING: dict[str, tuple[tuple[heedful.Reduction, ...], Callable[[Weights], None]]] = {
    "entropy in the call": ((heedful.Entropy(),), lambda w: None),
    "logsumexp in the call": ((heedful.LogSumExp(),), lambda w: None),
    "received in the call": ((heedful.Received("max"),), lambda w: None),
    "many in the call": (
        (
            heedful.TopK(2),
            heedful.Received(by_value_norm=True),
            heedful.DistanceProfile(),
            heedful.Pooled(2, 2),
        ),
        lambda w: None,
    ),
    "everything afterwards": ((), ask_everything),
    "in the call and afterwards": ((heedful.Entropy(), heedful.MaxLogit()), ask_everything),
    "a gradient of its own": ((), ask_and_differentiate),
}


def output_and_grads(
    case: Case,
    dtype: torch.dtype,
    backend: str,
    reduce: tuple = (),
    ask: Callable[[Weights], None] = lambda w: None,
) -> list[Tensor]:
    inputs = made(case, dtype).inputs()
    output, weights = made(case, dtype).attend(inputs, backend, reduce=reduce)
    ask(weights)
    for tensor in inputs.values():
        tensor.grad = None
    output.backward(made(case, dtype).grads[0])
    return [output, *(tensor.grad for tensor in inputs.values())]


@every_backend
@pytest.mark.parametrize("how", ASKING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name_of)
@every(CASES[:3])
def test_asking_changes_no_bit(case: Case, dtype: torch.dtype, how: str, backend: str) -> None:
    quiet = output_and_grads(case, dtype, backend)
    asked = output_and_grads(case, dtype, backend, *ASKING[how])
    assert [torch.equal(x, y) for x, y in zip(quiet, asked, strict=True)] == [True] * len(quiet)


@every_backend
@pytest.mark.parametrize("how", ["many in the call", "in the call and afterwards"])
@every(CASES[3:])
def test_asking_changes_no_bit_in_several_panels(case: Case, how: str, backend: str) -> None:
    quiet = output_and_grads(case, torch.float32, backend)
    asked = output_and_grads(case, torch.float32, backend, *ASKING[how])
    assert [torch.equal(x, y) for x, y in zip(quiet, asked, strict=True)] == [True] * len(quiet)


@every_backend
@pytest.mark.parametrize("how", ["entropy in the call", "many in the call", "everything afterwards"])
def test_asking_changes_no_bit_without_gradients(how: str, backend: str) -> None:
    reduce, ask = ASKING[how]
    for case in CASES:
        problem = made(case, torch.float32)
        inputs = {name: x.detach() for name, x in problem.inputs().items()}
        quiet, _ = problem.attend(inputs, backend)
        asked, weights = problem.attend(inputs, backend, reduce=reduce)
        if case.S < 50:
            ask(weights)
        assert torch.equal(quiet, asked)


@every_backend
def test_gradients_on_or_off_give_the_same_output(backend: str) -> None:
    for case in CASES:
        problem = made(case, torch.float32)
        inputs = problem.inputs()
        recorded = problem.attend(inputs, backend).output.detach()
        with torch.no_grad():
            assert torch.equal(problem.attend(inputs, backend).output, recorded)


@every_backend
def test_an_answer_is_the_same_whenever_it_is_asked(backend: str) -> None:
    """In the call, afterwards, again, together with others or alone."""
    for case in CASES[:3]:
        problem = made(case, torch.float32)
        entropy, received = heedful.Entropy(), heedful.Received()
        _, early = problem.attend(problem.inputs(), backend, reduce=[entropy, received])
        _, late = problem.attend(problem.inputs(), backend)
        together = late.reduce(entropy, received)
        _, alone = problem.attend(problem.inputs(), backend)
        answers = [
            (early.entropy(), early.received()),
            (late.entropy(), late.received()),
            (alone.entropy(), alone.received()),
        ]
        for found in answers:
            torch.testing.assert_close(found, together)


@every_backend
@every(CASES[:3])
def test_a_loss_on_answers_adds_its_gradient_and_nothing_else(case: Case, backend: str) -> None:
    problem = made(case, torch.float64)

    def grads(loss: Callable[[heedful.Attention], Tensor]) -> list[Tensor]:
        inputs = problem.inputs()
        loss(problem.attend(inputs, backend, reduce=heedful.Entropy())).backward()
        return [torch.zeros_like(x) if x.grad is None else x.grad for x in inputs.values()]

    output_alone = grads(lambda found: (found.output * problem.grads[0]).sum())
    entropy_alone = grads(lambda found: found.weights.entropy().sum())
    both = grads(lambda found: (found.output * problem.grads[0]).sum() + found.weights.entropy().sum())
    for x, y, z in zip(output_alone, entropy_alone, both, strict=True):
        torch.testing.assert_close(z, x + y)
