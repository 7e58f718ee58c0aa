"""Derivatives over several panels, in float64: finite differences, forward mode, torch.func, and copies."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import heedful
from heedful import masks
from heedful.backends.panels import functional, plan

jvp_warns = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@pytest.fixture(autouse=True)
def _several_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "ROWS", 2)


def inputs() -> tuple[Tensor, ...]:
    """Query, key, value, bias and sinks."""
    shapes = (2, 4, 3, 2), (2, 2, 5, 2), (2, 2, 5, 3), (1, 4, 3, 5), (4,)
    return tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)


CALLS: dict[str, dict[str, Any]] = {
    "causal": {"mask": masks.causal()},
    "a start per item": {"mask": masks.causal(), "query_start": torch.tensor([2, 0])},
    "edits": {"edit": [heedful.ablate(1), heedful.cut([0, 2], [1], renormalize=True)]},
    "dropout": {"dropout_p": 0.4},
    "a window and documents": {
        "mask": masks.window(3, 1) & masks.documents(torch.tensor([0, 0, 1, 1, 1])),
    },
}
every_call = pytest.mark.parametrize("name", CALLS)


def function(name: str) -> Callable[..., tuple[Tensor, ...]]:
    """Output, answers and products of a call with bias, sinks and softcap, as a function of the five tensors."""

    def f(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, sinks: Tensor) -> tuple[Tensor, ...]:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            output, weights = heedful.scaled_dot_product_attention(
                query, key, value, attn_bias=bias, sinks=sinks, softcap=2.0, backend="panels", **CALLS[name]
            )
        return (
            output,
            weights.entropy(),
            weights.logsumexp(),
            weights.received(),
            weights.topk(2).values,
            weights.mean_distance(),
            weights.distance(),
            weights @ value,
            weights.mT @ query,
        )

    return f


@every_call
def test_first_derivatives(name: str) -> None:
    assert gradcheck(function(name), inputs(), fast_mode=True)


@pytest.mark.slow
@every_call
def test_second_derivatives(name: str) -> None:
    assert gradgradcheck(function(name), inputs(), fast_mode=True)


@pytest.mark.slow
@jvp_warns
@every_call
def test_forward_mode(name: str) -> None:
    assert gradcheck(function(name), inputs(), check_forward_ad=True, check_backward_ad=False, fast_mode=True)


def summed(name: str) -> Callable[..., Tensor]:
    return lambda *tensors: sum(x.sin().sum() for x in function(name)(*tensors))


@every_call
def test_torch_func_grad_equals_autograd(name: str) -> None:
    tensors, f = inputs(), summed(name)
    expected = torch.autograd.grad(f(*tensors), tensors)
    found = torch.func.grad(f, argnums=(0, 1, 2, 3, 4))(*(x.detach() for x in tensors))
    torch.testing.assert_close(found, expected)


def scalar(query: Tensor, key: Tensor, value: Tensor, keep: Tensor) -> Tensor:
    """A loss of output and answers, with a mask among its arguments."""
    output, weights = heedful.scaled_dot_product_attention(
        query, key, value, masks.dense(keep) | masks.causal(), attn_bias=heedful.Alibi(4), backend="panels"
    )
    return output.sin().sum() + weights.entropy().square().sum() + weights.received("max").sum()


def of_query(query: Tensor, key: Tensor, value: Tensor, keep: Tensor) -> Tensor:
    return torch.func.grad(scalar)(query, key, value, keep).sin().sum()


def recorded(query: Tensor, key: Tensor, value: Tensor, keep: Tensor) -> tuple[Tensor, ...]:
    """autograd of a gradient that torch.func took."""
    leaves = query.clone().requires_grad_(), key.clone().requires_grad_()
    return torch.autograd.grad(of_query(*leaves, value, keep), leaves)


def pulled(*inputs: Tensor) -> Any:
    """A gradient, and one for each of three."""
    _, back = torch.func.vjp(lambda *x: scalar(*x, inputs[3]), *inputs[:3])
    return back(torch.ones((), dtype=torch.float64)), torch.func.vmap(back)(
        torch.ones(3, dtype=torch.float64)
    )


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "grad": torch.func.grad(scalar, (0, 1, 2)),
    "grad of grad": torch.func.grad(of_query, (0, 1, 2)),
    "jacrev of grad": torch.func.jacrev(torch.func.grad(scalar), 1),
    "jacfwd of grad": torch.func.jacfwd(torch.func.grad(scalar), 1),
    "jvp of grad": lambda *x: torch.func.jvp(lambda q: torch.func.grad(scalar)(q, *x[1:]), x[:1], x[:1]),
    "vmap of grad": lambda *x: torch.func.vmap(torch.func.grad(scalar, (0, 1)))(
        *(torch.stack([t, t.flip(0)]) for t in x)
    ),
    "grad of vmap": lambda *x: torch.func.grad(
        lambda q: torch.func.vmap(scalar)(q, *(t[None] for t in x[1:])).sum()
    )(x[0][None]),
    "autograd of grad": recorded,
    "vjp": pulled,
}


@jvp_warns
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_those_of_plain_operations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value, *_ = (x.detach() for x in inputs())
    keep = torch.rand(2, 1, 3, 5) < 0.6
    found = TRANSFORMS[name](query, key, value, keep)
    monkeypatch.setattr(functional, "usable", lambda: False)
    torch.testing.assert_close(found, TRANSFORMS[name](query, key, value, keep))


@jvp_warns
def test_jacobians_and_hessians_agree() -> None:
    query, *others = (x.detach() for x in inputs())

    def f(query: Tensor) -> Tensor:
        return function("causal")(query, *others)[0].sum((0, 1))

    torch.testing.assert_close(torch.func.jacfwd(f)(query), torch.func.jacrev(f)(query))

    def scalar(query: Tensor) -> Tensor:
        return f(query).sin().sum()

    expected = torch.autograd.functional.hessian(scalar, query)
    torch.testing.assert_close(torch.func.hessian(scalar)(query), expected)


def test_gradients_per_sample() -> None:
    """vmap(grad), what per-sample gradients and meta-learning are made of."""
    query, key, value, *_ = (torch.stack([x.detach(), x.detach().flip(0)]) for x in inputs())

    def f(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output, weights = heedful.scaled_dot_product_attention(query, key, value, masks.causal())
        return output.sin().sum() + weights.entropy().sum()

    found = torch.func.vmap(torch.func.grad(f, (0, 1, 2)))(query, key, value)
    expected = [torch.func.grad(f, (0, 1, 2))(*each) for each in zip(query, key, value, strict=True)]
    for x, parts in zip(found, zip(*expected, strict=True), strict=True):
        torch.testing.assert_close(x, torch.stack(parts))


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"]
)
@every_call
def test_copies_of_weights_are_detached_and_carry_the_answers(name: str, copied: Callable) -> None:
    query, key, value, bias, sinks = inputs()
    _, weights = heedful.scaled_dot_product_attention(
        query, key, value, attn_bias=bias, sinks=sinks, reduce=heedful.Entropy(), **CALLS[name]
    )
    found = copied(weights)
    assert list(found._answers) == [heedful.Entropy()]
    for ask in (heedful.Weights.entropy, heedful.Weights.received, heedful.Weights.full):
        answer = ask(found)
        assert not answer.requires_grad
        torch.testing.assert_close(answer, ask(weights).detach())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_autocast_gives_the_dtype_that_torch_gives(dtype: torch.dtype) -> None:
    query, key, value = (torch.randn(2, 3, 5, 4).to(dtype) for _ in range(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        output, weights = heedful.scaled_dot_product_attention(query, key, value)
        assert output.dtype == expected.dtype
        assert weights.entropy().dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert (weights @ value).dtype == dtype


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"]
)
def test_copies_of_a_module_compute_the_same(copied: Callable) -> None:
    module = heedful.MultiHeadAttention(8, 4, position=heedful.RelativeBias(4), sinks=True, qk_norm=True)
    x, mask = torch.randn(2, 5, 8), masks.causal() | masks.prefix(2)
    found = copied(module)(x, mask=copied(mask)).output
    torch.testing.assert_close(found, module(x, mask=mask).output)
