"""Derivatives in float64 against finite differences, forward mode and torch.func, on every backend."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import heedful
from calls import causal, with_rule
from cases import Case, attend, every, every_backend, made, padded
from heedful import Weights, masks

SIZES = {"B": 2, "H": 4, "G": 2, "L": 3, "S": 4, "E": 2, "Ev": 3}
CASES = [
    Case("no mask", **SIZES),
    Case("causal, an empty row", mask=lambda c: masks.causal(), keep=causal, query_start=-1, **SIZES),
    Case("bias, softcap, sinks", bias=(1, 4, 3, 4), softcap=1.5, sinks=True, **SIZES),
    with_rule(
        lambda c: lambda b, j, **_: padded(c)[b, j],
        name="padding, a bias per item, sinks",
        bias=(2, 1, 1, 4),
        sinks=True,
        mask=lambda c: masks.padding(padded(c)),
        **SIZES,
    ),
]
ANSWERS: dict[str, Callable[[Weights], Tensor]] = {
    "entropy": lambda w: w.entropy(),
    "topk": lambda w: w.topk(2).values,
    "received": lambda w: w.received(),
    "received by value norm": lambda w: w.received(by_value_norm=True),
    "received max": lambda w: w.received("max"),
    "mean distance": lambda w: w.mean_distance(),
    "distance": lambda w: w.distance(),
    "pooled": lambda w: w.pooled(2, 3),
    "by key": lambda w: w.by_key(torch.tensor([0, 1, 0, -1])),
    "sink share": lambda w: w.sink_share(),
    "max logit": lambda w: finite(w.max_logit()),
    "logsumexp": lambda w: finite(w.logsumexp()),
    "rows": lambda w: w[..., -1, :],
    "elements": lambda w: w[0, [0, 3, 1], [2, 2, 0], [1, 0, 3]],
    "product": lambda w: w @ torch.arange(8.0, dtype=torch.float64).view(4, 2),
    "transposed product": lambda w: w.mT @ torch.arange(6.0, dtype=torch.float64).view(3, 2),
    "full": lambda w: w.full(),
}
SMOOTH = ["entropy", "received", "mean distance", "pooled", "full"]


def finite(x: Tensor) -> Tensor:
    return x.masked_fill(x.isinf(), 0)


def function(
    case: Case, backend: str, result: Callable[[heedful.Attention], Tensor]
) -> tuple[Callable, tuple]:
    """A function of the tensors of a case, and these tensors, small and in float64."""
    problem = made(case, torch.float64)
    inputs = problem.inputs()

    def f(*tensors: Tensor) -> Tensor:
        return result(problem.attend(dict(zip(inputs, tensors, strict=True)), backend))

    return f, tuple(inputs.values())


@every_backend
@every(CASES)
def test_gradient_of_the_output(case: Case, backend: str) -> None:
    f, inputs = function(case, backend, lambda found: found.output)
    assert gradcheck(f, inputs)


@every_backend
@pytest.mark.parametrize("name", ANSWERS)
@every(CASES[1:3])
def test_gradient_of_an_answer(case: Case, name: str, backend: str) -> None:
    f, inputs = function(case, backend, lambda found: ANSWERS[name](found.weights))
    assert gradcheck(f, inputs, fast_mode=True)


@every_backend
@every(CASES)
def test_gradient_of_output_and_answers_of_the_same_pass(case: Case, backend: str) -> None:
    asked = heedful.Entropy(), heedful.LogSumExp(), heedful.Received(), heedful.TopK(2)
    problem = made(case, torch.float64)
    inputs = problem.inputs()

    def f(*tensors: Tensor) -> tuple[Tensor, ...]:
        output, weights = problem.attend(dict(zip(inputs, tensors, strict=True)), backend, reduce=asked)
        return (
            output,
            weights.entropy(),
            finite(weights.logsumexp()),
            weights.received(),
            weights.topk(2).values,
        )

    assert gradcheck(f, tuple(inputs.values()), fast_mode=True)


@every_backend
@every(CASES)
def test_second_derivative_of_the_output(case: Case, backend: str) -> None:
    f, inputs = function(case, backend, lambda found: found.output)
    assert gradgradcheck(f, inputs, fast_mode=True)


@every_backend
@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivative_of_an_answer(name: str, backend: str) -> None:
    f, inputs = function(CASES[1], backend, lambda found: ANSWERS[name](found.weights))
    assert gradgradcheck(f, inputs, fast_mode=True)


@every_backend
@every(CASES)
@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)  # torch's own jvp uses it
def test_forward_mode(case: Case, backend: str) -> None:
    f, inputs = function(case, backend, lambda found: (found.output, found.weights.entropy()))
    assert gradcheck(f, inputs, check_forward_ad=True, check_backward_ad=False, fast_mode=True)


@every_backend
def test_vmap_equals_a_loop(backend: str) -> None:
    """pytorch#102457, mlx#3383: vmap over attention was unsupported, slow, or hung with grouped heads."""
    query, key, value = torch.randn(3, 2, 4, 5, 6), torch.randn(3, 2, 2, 7, 6), torch.randn(3, 2, 2, 7, 3)

    def f(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = attend(query, key, value, masks.causal(), backend=backend)
        return output, weights.entropy()

    found = torch.func.vmap(f)(query, key, value)
    expected = [f(*each) for each in zip(query, key, value, strict=True)]
    for x, each in zip(found, zip(*expected, strict=True), strict=True):
        torch.testing.assert_close(x, torch.stack(each))


@every_backend
def test_torch_func_equals_autograd(backend: str) -> None:
    f, inputs = function(
        CASES[2], backend, lambda found: found.output.sin().sum() + found.weights.entropy().sum()
    )
    expected = torch.autograd.grad(f(*inputs), inputs)
    plain = tuple(x.detach() for x in inputs)
    found = torch.func.grad(f, argnums=tuple(range(len(plain))))(*plain)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)

    jacobian = torch.func.jacrev(lambda query: f(query, *plain[1:]))(plain[0])
    torch.testing.assert_close(jacobian, expected[0])
    hessian = torch.func.hessian(lambda query: f(query, *plain[1:]))(plain[0])
    numeric = torch.autograd.functional.hessian(lambda query: f(query, *plain[1:]), plain[0])
    torch.testing.assert_close(hessian, numeric)


@every_backend
def test_a_gradient_is_only_computed_for_what_wants_one(backend: str) -> None:
    problem = made(CASES[2], torch.float64)
    for wanted in problem.inputs():
        inputs = {name: x.detach().requires_grad_(name == wanted) for name, x in problem.inputs().items()}
        output, _ = problem.attend(inputs, backend)
        output.sum().backward()
        assert [name for name, x in inputs.items() if x.grad is not None] == [wanted]


@every_backend
def test_one_tensor_as_query_key_and_value(backend: str) -> None:
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: attend(x, x, x, masks.causal(), backend=backend).output, (x,))


@every_backend
@pytest.mark.parametrize("changed", [0, 1, 2], ids=["query", "key", "value"])
def test_a_gradient_after_a_change_in_place_raises_or_is_right(changed: int, backend: str) -> None:
    leaves = [torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3)]
    expected = torch.autograd.grad(attend(*leaves, backend=backend).output.sin().sum(), leaves)
    tensors = [leaf.clone() for leaf in leaves]
    output, _ = attend(*tensors, backend=backend)
    tensors[changed].detach().add_(1)
    try:
        found = torch.autograd.grad(output.sin().sum(), leaves)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
    else:
        torch.testing.assert_close(found, expected)
