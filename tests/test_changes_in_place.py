"""What is changed in place after a call changes nothing that was answered, and is noticed where it matters."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import heedful
from cases import attend, every_backend
from heedful import Entropy, LogSumExp, Received, TopK, Weights, cut, masks, scaled_dot_product_attention

B, H, G, L, S, E = 2, 4, 2, 5, 7, 6


def inputs(
    grad: bool = False, batch: tuple[int, ...] = (B,), heads: tuple[int, ...] = (H, G)
) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = ((*batch, *heads[:1], L, E), *2 * ((*batch, *heads[1:], S, E),))
    return [torch.randn(shape).requires_grad_(grad) for shape in shapes]


@every_backend
@pytest.mark.parametrize("asked", [(), (Entropy(), TopK(2))], ids=["output", "answers"])
@pytest.mark.parametrize(
    ("batch", "heads"), [((B,), ()), ((B,), (H, G)), ((B, 3), (H, G))], ids=["3-D", "4-D", "5-D"]
)
def test_an_output_that_is_changed_in_place_has_the_gradient_of_a_copy(
    batch: tuple[int, ...], heads: tuple[int, ...], asked: tuple[heedful.Reduction, ...], backend: str
) -> None:
    tensors = inputs(True, batch, heads)
    output = attend(*tensors, masks.causal(), reduce=asked, backend=backend).output
    expected = torch.autograd.grad((output * 2 + 1).square().sum(), tensors)
    output = attend(*tensors, masks.causal(), reduce=asked, backend=backend).output
    output.mul_(2)
    output += 1
    for found, wanted in zip(torch.autograd.grad(output.square().sum(), tensors), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_an_output_after_dropout_can_be_changed_in_place() -> None:
    tensors = inputs(True)
    output = scaled_dot_product_attention(*tensors, dropout_p=0.4).output
    output += tensors[0]
    assert all(grad.abs().sum() > 0 for grad in torch.autograd.grad(output.sum(), tensors))


CHANGES = {
    "entropy": (Entropy(), lambda w: w.entropy(), lambda x: x.mul_(2)),
    "received": (Received(), lambda w: w.received(), lambda x: x.div_(x.sum(-1, keepdim=True))),
    "weights of topk": (TopK(3), lambda w: w.topk(3).values, lambda x: x.sub_(1)),
    "part of topk": (TopK(3), lambda w: w.topk(2).values, lambda x: x.sub_(1)),
    "keys of topk": (TopK(3), lambda w: w.topk(3).indices, lambda x: x.clamp_(min=0)),
}


@every_backend
@pytest.mark.parametrize("when", ["at the call", "later"])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("name", CHANGES)
def test_an_answer_that_is_changed_in_place_is_found_again(
    name: str, grad: bool, when: str, backend: str
) -> None:
    reduction, ask, change = CHANGES[name]
    tensors = inputs(grad)
    # With two visible keys at first, some indices are -1.
    asked = (reduction, LogSumExp()) if when == "at the call" else ()
    output, weights = attend(*tensors, masks.causal(), query_start=1, reduce=asked, backend=backend)
    first = ask(weights)
    before = first.detach().clone()
    with torch.no_grad():
        change(first)
    assert not torch.equal(first, before)
    again = ask(weights)
    assert torch.equal(again, before)
    if grad:
        first.mul_(2)
        assert output.grad_fn is not None
        torch.autograd.grad(output.sum(), tensors[2], retain_graph=True)
    if grad and again.is_floating_point():
        found = torch.autograd.grad(again.square().sum(), tensors[:2])
        anew = ask(attend(*tensors, masks.causal(), query_start=1, backend=backend).weights)
        for x, wanted in zip(found, torch.autograd.grad(anew.square().sum(), tensors[:2]), strict=True):
            torch.testing.assert_close(x, wanted)


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda w: pickle.loads(pickle.dumps(w)),
    "tree_map": lambda w: tree_map(lambda x: x, w),
    "another dtype": lambda w: tree_map(lambda x: x.double() if x.is_floating_point() else x, w),
    "a part": lambda w: w[:, 1:],
    "a copy of a copy": lambda w: copy.copy(tree_map(lambda x: x, w)),
}


@pytest.mark.parametrize("which", ["query", "key", "value", "mask", "attn_bias", "sinks"])
@pytest.mark.parametrize("name", COPIES)
def test_copies_of_changed_weights_refuse_new_questions(name: str, which: str) -> None:
    tensors = dict(zip(("query", "key", "value"), inputs(), strict=True))
    tensors |= {
        "mask": torch.rand(L, S) > 0.2,
        "attn_bias": torch.randn(H, L, S)[None],
        "sinks": torch.randn(H),
    }
    _, weights = scaled_dot_product_attention(**tensors, reduce=Entropy())
    early, entropy = COPIES[name](weights), weights.entropy()
    early.full(), early.value_norms()
    tensors[which].zero_()
    if name == "a part" and which != "value":
        with pytest.raises(RuntimeError, match=f"^{which} was changed in place after the call"):
            COPIES[name](weights)
        return
    late = COPIES[name](weights)
    if name != "a part":
        torch.testing.assert_close(late.entropy(), entropy, check_dtype=False)
    if which == "value":
        late.full()
    for ask in (late.value_norms, *([] if which == "value" else [late.full, lambda: late[0, 1, 2]])):
        with pytest.raises(RuntimeError, match=f"^{which} was changed in place after the call"):
            ask()


@every_backend
def test_positions_that_count_on_after_the_call_change_nothing(backend: str) -> None:
    position = torch.tensor([3, 5])
    tensors = inputs(True)
    output, weights = attend(*tensors, masks.causal(), query_start=position, backend=backend)
    matrix = weights.full()
    position += 1
    torch.testing.assert_close(weights[:, 1:3].full(), matrix[:, 1:3])
    torch.testing.assert_close(weights[0, 3, -1], matrix[0, 3, -1])
    torch.testing.assert_close(weights.received(), matrix.sum(-2))
    output.sum().backward()


@pytest.mark.parametrize("make", [torch.tensor, list, numpy.array], ids=["tensor", "list", "array"])
def test_what_a_cut_was_made_of_may_change(make: Callable[[list[int]], Any]) -> None:
    keys = make([1, 2])
    _, weights = scaled_dot_product_attention(*inputs(), edit=cut([0, 3], keys))
    before = weights.full()
    assert not before[:, :, 3, 1:3].any()
    keys[0] = 5
    assert torch.equal(weights.full(), before)


class Careless(nn.Module):
    """Attention that changes its queries afterwards."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = (x.repeat_interleave(H // G, 1) for x in (key, value))
        output = nn.functional.scaled_dot_product_attention(query, key, value)
        query.mul_(2)
        return output


def test_what_was_watched_is_not_saved_once_it_was_changed(tmp_path: Path) -> None:
    model = Careless()
    with heedful.watch(model) as seen, torch.no_grad():
        model(*inputs())
    with pytest.raises(RuntimeError, match=r"^query was changed in place after the call"):
        seen.save(tmp_path / "seen.safetensors")
    assert not list(tmp_path.iterdir())


def test_kept_answers_may_be_changed() -> None:
    model = heedful.MultiHeadAttention(8, 2)
    with heedful.watch(model, Entropy(), TopK(2)) as seen, torch.no_grad():
        model(torch.randn(B, L, 8))
    (weights,) = seen.layers[0]
    assert isinstance(weights, Weights)
    entropy = weights.entropy().clone()
    weights.entropy().mul_(2)
    weights.topk(2).indices.zero_()
    assert torch.equal(weights.entropy(), entropy)
    assert weights.topk(2).indices.any()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_answers_may_be_changed_where_torch_does_not_count(mode: Callable) -> None:
    with mode():
        _, weights = scaled_dot_product_attention(*inputs(), reduce=(Entropy(), heedful.reductions.Full()))
        entropy, matrix = weights.entropy().clone(), weights.full().clone()
        weights.entropy().zero_()
        weights.full().zero_()
        weights.entropy().numpy()[:] = 3
        assert torch.equal(weights.entropy(), entropy)
        assert torch.equal(weights.full(), matrix)


def test_answers_of_a_compiled_call_may_be_changed() -> None:
    def ask(*tensors: Tensor) -> tuple[Weights, Tensor]:
        _, weights = scaled_dot_product_attention(*tensors, reduce=Entropy())
        weights.entropy().mul_(2)
        return weights, weights.entropy()

    weights, entropy = torch.compile(ask, backend="eager")(*inputs())
    expected = scaled_dot_product_attention(*inputs()).weights.entropy()
    torch.testing.assert_close(entropy, expected)
    weights.entropy().mul_(2)
    torch.testing.assert_close(weights.entropy(), expected)


def test_a_compiled_function_is_told_what_was_answered_before() -> None:
    query, key, value = inputs()
    _, weights = scaled_dot_product_attention(query, key, value, reduce=Entropy())
    entropy = weights.entropy()
    key.mul_(2)
    assert torch.equal(torch.compile(lambda w: w.entropy() + 0, backend="eager")(weights), entropy)


@pytest.mark.parametrize("backend", ["auto", "panels"])
def test_an_output_that_is_changed_under_torch_func(backend: str) -> None:
    query, key, value = inputs()

    def loss(query: Tensor, change: bool) -> Tensor:
        output, weights = scaled_dot_product_attention(query, key, value, reduce=Entropy(), backend=backend)
        entropy = weights.entropy()
        if change:
            return output.mul_(2).square().sum() + entropy.mul_(3).sum() + weights.entropy().sum()
        return (output * 2).square().sum() + (entropy * 4).sum()

    found, expected = (torch.func.grad(loss)(query, change) for change in (True, False))
    torch.testing.assert_close(found, expected)


class Step(nn.Module):
    """Attention over a cache that grows."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(query, key, value, masks.causal()).output


def test_what_was_watched_of_a_growing_cache_can_be_copied() -> None:
    model, (query, key, value) = Step(), inputs()
    with heedful.watch(model) as seen, torch.no_grad():
        for n in range(4, S + 1):
            model(query[:, :, -1:], key[:, :, :n], value[:, :, :n])
    for copied in (copy.deepcopy(seen), pickle.loads(pickle.dumps(seen))):
        for before, after in zip(seen.layers[0], copied.layers[0], strict=True):
            assert torch.equal(after.full(), before.full())
    query.mul_(2)
    with pytest.raises(RuntimeError, match=r"^query was changed in place after the call"):
        seen.layers[0].calls[0].full()


@every_backend
def test_one_question_asked_twice_has_two_answers(backend: str) -> None:
    _, weights = attend(*inputs(), backend=backend)
    for reduction in (heedful.reductions.Full(), Entropy()):
        one, other = weights.reduce(reduction, reduction)
        before = other.clone()
        one.zero_()
        assert torch.equal(other, before)


def test_weights_whose_parts_are_replaced_by_none_come_together() -> None:
    _, weights = scaled_dot_product_attention(*inputs(), sinks=torch.zeros(H), mask=torch.ones(L, S) > 0)
    assert isinstance(tree_map(lambda x: x.grad, weights), Weights)
