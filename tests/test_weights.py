"""Weights stand for their matrix: torch functions, copies, remembered answers, changes in place, gradients."""

import copy
import pickle

import pytest
import torch
from torch import Tensor

import heedful
from cases import attend, every_backend
from heedful import Weights, masks, scaled_dot_product_attention

B, H, G, L, S, E = 2, 4, 2, 5, 7, 3


@pytest.fixture
def weights() -> Weights:
    return scaled_dot_product_attention(
        torch.randn(B, H, L, E), torch.randn(B, G, S, E), torch.randn(B, G, S, E), masks.causal()
    ).weights


FUNCTIONS = {
    "sum over keys": lambda w: w.sum(-1),
    "torch.sum": lambda w: torch.sum(w, dim=-1, keepdim=True),
    "sum over queries": lambda w: w.sum(dim=-2),
    "sum over heads": lambda w: w.sum(1),
    "sum of all": lambda w: w.sum(),
    "mean over keys": lambda w: w.mean(-1),
    "mean over queries": lambda w: torch.mean(w, -2),
    "mean over heads": lambda w: w.mean(dim=1),
    "amax over keys": lambda w: w.amax(-1),
    "amax over queries": lambda w: w.amax(2, keepdim=True),
    "max": lambda w: w.max(-1).values,
    "argmax": lambda w: w.argmax(-1),
    "matmul": lambda w: torch.matmul(w, torch.ones(S, 2)),
    "matmul with the transpose": lambda w: torch.matmul(w.mT, torch.ones(L, 2)),
    "einsum": lambda w: torch.einsum("bhls->bls", w),
    "a matrix times weights": lambda w: torch.ones(3, L) @ w,
    "arithmetic": lambda w: 2 * w + 1 - w / 2,
    "comparison": lambda w: w > 0.1,
    "equality": lambda w: w == 0,
    "inequality": lambda w: w != 0,
    "where": lambda w: torch.where(w > 0.2, w, 0),
    "log": lambda w: torch.log(w + 1),
    "transpose": lambda w: w.transpose(1, 2),
    "flatten": lambda w: w.flatten(1),
    "std": lambda w: w.std(-1),
    "numpy": lambda w: torch.as_tensor(w.numpy()),
    "shape": lambda w: torch.tensor([*w.shape, w.dim(), w.size(-1), w.numel(), len(w), w.ndim]),
    "the transpose's matrix": lambda w: w.mT.full() if isinstance(w, Weights) else w.mT,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_torch_function_gives_what_it_gives_for_the_matrix(name: str, weights: Weights) -> None:
    torch.testing.assert_close(FUNCTIONS[name](weights), FUNCTIONS[name](weights.full()))


@pytest.mark.parametrize(
    ("function", "instead"), [(torch.sort, "weights.topk(k)"), (torch.log, "weights.entropy()")]
)
def test_a_function_without_a_stream_refuses_a_large_matrix(function, instead: str) -> None:
    x = torch.zeros(1, 1, 2**14 + 1, 1)
    _, large = scaled_dot_product_attention(x, x, x, masks.window(1))
    with pytest.raises(MemoryError) as raised:
        function(large)
    assert str(raised.value).startswith(
        f"{function.__name__}() would build the whole matrix (1, 1, 16385, 16385), 1.0 GiB."
    )
    assert instead in str(raised.value)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda w: pickle.loads(pickle.dumps(w))])
def test_copies_are_detached_and_carry_the_answers(copied) -> None:
    query = torch.randn(B, H, L, E, requires_grad=True)
    key, value = torch.randn(B, G, S, E, requires_grad=True), torch.randn(B, G, S, E)
    _, weights = scaled_dot_product_attention(query, key, value, masks.causal(), reduce=heedful.Entropy())
    found = copied(weights)
    assert found.shape == weights.shape
    assert not found.entropy().requires_grad
    assert not found.full().requires_grad
    torch.testing.assert_close(found.entropy(), weights.entropy().detach())
    torch.testing.assert_close(found.full(), weights.full().detach())


def test_an_answer_is_remembered_and_costs_nothing_to_ask_again(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    entropy, top = weights.entropy(), weights.topk(4)
    monkeypatch.setattr(heedful.backends, "run", lambda *_, **__: pytest.fail("a pass over the panels"))
    torch.testing.assert_close(weights.entropy(), entropy, rtol=0, atol=0)
    torch.testing.assert_close(weights.topk(2).values, top.values[..., :2], rtol=0, atol=0)


def test_what_the_call_was_asked_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(B, H, L, E)
    asked = [heedful.Entropy(), heedful.TopK(3), heedful.Received("max")]
    _, weights = scaled_dot_product_attention(x, x, x, reduce=asked)
    monkeypatch.setattr(heedful.backends, "run", lambda *_, **__: pytest.fail("a pass over the panels"))
    assert weights.entropy().shape == (B, H, L)
    assert weights.topk(2).indices.shape == (B, H, L, 2)
    assert weights.received("max").shape == (B, H, L)


@pytest.mark.parametrize("changed", [0, 1], ids=["query", "key"])
def test_a_new_question_after_a_change_in_place_raises_and_old_answers_stay(changed: int) -> None:
    tensors = [torch.randn(B, H, L, E) for _ in range(3)]
    _, weights = scaled_dot_product_attention(*tensors, reduce=heedful.Entropy())
    entropy = weights.entropy().clone()
    tensors[changed].mul_(2)
    assert torch.equal(weights.entropy(), entropy)
    for ask in (
        weights.received,
        weights.full,
        lambda: weights[0],
        lambda: weights[..., -1, :],
        lambda: weights @ torch.ones(L),
    ):
        with pytest.raises(
            RuntimeError, match=f"{['query', 'key'][changed]} was changed in place after the call"
        ):
            ask()


def test_a_changed_value_matters_only_to_questions_that_read_it() -> None:
    tensors = [torch.randn(B, H, L, E) for _ in range(3)]
    _, weights = scaled_dot_product_attention(*tensors)
    tensors[2].mul_(2)
    assert weights.entropy().shape == (B, H, L)
    for ask in (lambda: weights.received(by_value_norm=True), weights.value_norms):
        with pytest.raises(RuntimeError, match="value was changed in place"):
            ask()


def test_under_inference_mode_there_are_no_versions_and_questions_are_answered() -> None:
    with torch.inference_mode():
        x = torch.randn(B, H, L, E)
        _, weights = scaled_dot_product_attention(x, x, x, masks.causal())
        torch.testing.assert_close(weights.entropy(), torch.special.entr(weights.full()).sum(-1))


def grad_of(ask, *, call_on: bool, ask_on: bool) -> Tensor:
    x = torch.randn(B, H, L, E, requires_grad=True)
    with torch.set_grad_enabled(call_on):
        _, weights = scaled_dot_product_attention(x, x, x)
    with torch.set_grad_enabled(ask_on):
        return ask(weights)


@pytest.mark.parametrize(
    "ask", [Weights.entropy, Weights.full, lambda w: w[..., 0, :], lambda w: w @ torch.ones(L)]
)
def test_an_answer_is_differentiable_when_grad_was_on_at_the_call_and_is_on_at_the_question(ask) -> None:
    assert grad_of(ask, call_on=True, ask_on=True).requires_grad
    assert not grad_of(ask, call_on=False, ask_on=True).requires_grad
    assert not grad_of(ask, call_on=True, ask_on=False).requires_grad


def test_topk_names_the_keys_and_fills_up_with_0_and_minus_1() -> None:
    x = torch.randn(B, H, S, E)
    _, weights = scaled_dot_product_attention(x, x, x, masks.causal())
    values, indices = weights.topk(3)
    matrix = weights.full()
    assert torch.equal(indices[:, :, 0, 1:], torch.full((B, H, 2), -1))
    assert not values[:, :, 0, 1:].any()
    seen = indices >= 0
    torch.testing.assert_close(matrix.gather(-1, indices.clamp(min=0))[seen], values[seen])
    assert (values[..., :-1] >= values[..., 1:]).all()
    assert torch.equal(seen.sum(-1)[0, 0], torch.arange(1, S + 1).clamp(max=3))


def test_three_dimensions_are_a_batch_with_one_head_and_more_are_kept() -> None:
    x = torch.randn(B, L, E)
    output, weights = scaled_dot_product_attention(x, x, x)
    assert (output.shape, weights.shape, weights.entropy().shape) == ((B, L, E), (B, L, L), (B, L))
    x = torch.randn(2, 3, H, L, E)
    output, weights = scaled_dot_product_attention(x, x, x)
    assert (output.shape, weights.shape, weights.received().shape) == (
        (2, 3, H, L, E),
        (2, 3, H, L, L),
        (2, 3, H, L),
    )


def test_it_says_what_it_is(weights: Weights) -> None:
    assert repr(weights) == "Weights(shape=(2, 4, 5, 7), dtype=torch.float32, device='cpu'; never built)"


def test_an_answer_that_is_reshaped_in_place_is_not_the_remembered_one(weights: Weights) -> None:
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            weights.entropy().unsqueeze_(-1)
            assert weights.entropy().shape == (B, H, L)
            for each in weights.topk(3):
                each.unsqueeze_(-1)
            assert [each.shape for each in weights.topk(3)] == 2 * [(B, H, L, 3)]


def test_products_with_integers_and_bools_have_fractions(weights: Weights) -> None:
    keys, queries, some = torch.arange(S), torch.arange(L), torch.arange(S) % 2 == 0
    for found, expected in (
        (weights @ keys, weights.full() @ keys.float()),
        (weights @ some, weights.full() @ some.float()),
        (weights.mT @ queries, weights.full().mT @ queries.float()),
    ):
        torch.testing.assert_close(found, expected)
    assert (weights @ keys.bfloat16()).dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"needs real numbers .*got complex64"):
        weights @ keys.to(torch.complex64)


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (lambda w: w @ torch.ones(S, 2, device="meta"), "weights @ x needs"),
        (lambda w: w.mT @ torch.ones(L, 2, device="meta"), r"weights\.mT @ y needs"),
        (lambda w: w.value_norms(torch.ones(5, H * E, device="meta")), "out_proj"),
    ],
)
def test_an_operand_on_another_device_is_refused(ask, name: str, weights: Weights) -> None:
    with pytest.raises(ValueError, match=f"^{name} .*meta.*"):
        ask(weights)


@pytest.mark.parametrize("dtype", ["x", torch.int64, torch.bool])
def test_the_matrix_has_a_dtype_that_can_hold_it(dtype, weights: Weights) -> None:
    with pytest.raises(TypeError, match=r"^full\(\): dtype must be a floating-point dtype"):
        weights.full(dtype)
    assert torch.equal(weights.full(torch.float16), weights.full().half())


@every_backend
@pytest.mark.parametrize("L", [1, 5])
def test_a_score_out_of_reach_has_weight_0(L: int, backend: str) -> None:
    query, key = torch.randn(B, H, L, E), torch.randn(B, G, S, E)
    bias = torch.where(torch.arange(S) < 4, 0, torch.finfo(torch.float32).min).expand(L, S)
    found = attend(query, key, key, attn_bias=bias, backend=backend).weights
    expected = attend(query, key, key, torch.arange(S).expand(L, S) < 4, backend=backend).weights
    torch.testing.assert_close(found.full(), expected.full())
    assert torch.equal(found.full() == 0, torch.arange(S).expand(B, H, L, S) >= 4)
