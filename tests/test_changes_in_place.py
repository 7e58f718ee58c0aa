"""What is changed in place after a call changes nothing that was answered, and is noticed where it matters."""

import copy
import pickle
from pathlib import Path

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
    _, weights = attend(*tensors, masks.causal(), query_start=1, reduce=asked, backend=backend)
    first = ask(weights)
    before = first.detach().clone()
    with torch.no_grad():
        change(first)
    assert not torch.equal(first, before)
    again = ask(weights)
    assert torch.equal(again, before)
    if grad and again.is_floating_point():
        found = torch.autograd.grad(again.square().sum(), tensors[:2])
        anew = ask(attend(*tensors, masks.causal(), query_start=1, backend=backend).weights)
        for x, wanted in zip(found, torch.autograd.grad(anew.square().sum(), tensors[:2]), strict=True):
            torch.testing.assert_close(x, wanted)


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "tree_map": lambda w: tree_map(lambda x: x, w).full(),
    "another dtype": lambda w: tree_map(lambda x: x.double() if x.is_floating_point() else x, w).full(),
}


@pytest.mark.parametrize("which", ["query", "key", "value"])
@pytest.mark.parametrize("name", COPIES)
def test_copies_are_refused_once_a_tensor_was_changed(name: str, which: str) -> None:
    tensors = dict(zip(("query", "key", "value"), inputs(), strict=True))
    _, weights = scaled_dot_product_attention(**tensors, reduce=Entropy())
    COPIES[name](weights)
    tensors[which].mul_(2)
    if which == "value" and name in ("tree_map", "another dtype"):
        ask = lambda w: tree_map(lambda x: x, w).value_norms()  # noqa: E731
    else:
        ask = COPIES[name]
    with pytest.raises(RuntimeError, match=f"^{which} was changed in place after the call"):
        ask(weights)


def test_parts_of_changed_weights_still_know_their_answers() -> None:
    query, key, value = inputs()
    _, weights = scaled_dot_product_attention(query, key, value, reduce=Entropy())
    entropy = weights.entropy()
    key.mul_(2)
    assert torch.equal(tree_map(lambda x: x, weights).entropy(), entropy)


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


@pytest.mark.parametrize("keys", [torch.tensor([1, 2]), [1, 2]], ids=["tensor", "list"])
def test_what_a_cut_was_made_of_may_change(keys: Tensor | list[int]) -> None:
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


def test_kept_answers_are_handed_out_as_copies() -> None:
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
