"""Weights and masks as pytrees."""

import io

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import heedful
from heedful import masks

IDS = torch.tensor([0, 0, 1, 1, 1, -1, 2])
MASKS = {
    "causal": (masks.causal(), 0),
    "prefix": (masks.prefix(torch.tensor([2, 3])), 1),
    "documents": (masks.documents(IDS), 1),
    "combined": (masks.causal() & masks.documents(IDS) | ~masks.padding(torch.eye(2, 7) == 0), 2),
    "dense": (masks.dense(torch.ones(5, 7, dtype=torch.bool)), 1),
}


def attended(**options) -> tuple[heedful.Weights, tuple[Tensor, ...]]:
    tensors = torch.randn(2, 4, 5, 6), torch.randn(2, 2, 7, 6), torch.randn(2, 2, 7, 3), torch.randn(4)
    tensors = tuple(x.requires_grad_() for x in tensors)
    *given, sinks = tensors
    return heedful.scaled_dot_product_attention(*given, sinks=sinks, **options).weights, tensors


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_comes_apart_into_its_tensors_and_together_again(name: str) -> None:
    mask, count = MASKS[name]
    leaves, spec = tree_flatten(mask)
    assert len(leaves) == count
    assert torch.equal(tree_unflatten(leaves, spec).to_dense(5, 7), mask.to_dense(5, 7))
    assert tree_flatten(mask)[1] == spec
    tree_map(lambda leaf: object(), mask)  # leaves that are no tensors are nobody's business


@pytest.mark.parametrize("name", MASKS)
def test_weights_come_apart_with_their_mask_and_answers(name: str) -> None:
    weights, _ = attended(mask=MASKS[name][0], reduce=(heedful.Entropy(), heedful.TopK(2)))
    leaves, spec = tree_flatten(weights)
    assert all(isinstance(leaf, Tensor) for leaf in leaves)
    found = tree_unflatten(leaves, spec)
    assert found.shape == weights.shape
    assert list(found._answers) == [heedful.Entropy(), heedful.TopK(2)]
    assert torch.equal(found.entropy(), weights.entropy())
    assert torch.equal(found.received(), weights.received())


def test_what_is_mapped_over_weights_reaches_what_they_answer() -> None:
    weights, tensors = attended(attn_bias=heedful.RelativeBias(4))
    detached = tree_map(lambda leaf: leaf.detach(), weights)
    assert weights.entropy().requires_grad
    assert not detached.entropy().requires_grad
    wide = tree_map(lambda leaf: leaf.double(), weights)
    torch.testing.assert_close(wide.full(), weights.full().double())
    gradient = torch.autograd.grad(wide.received().sin().sum(), tensors[0])[0]
    torch.testing.assert_close(gradient, torch.autograd.grad(weights.received().sin().sum(), tensors[0])[0])


def test_parts_of_ones_own_stay_as_they_are() -> None:
    def edit(panel):
        return panel.weights / 2

    weights, _ = attended(edit=edit)
    assert tree_map(lambda leaf: leaf, weights)._call.edits == (edit,)
    torch.testing.assert_close(tree_map(lambda leaf: leaf, weights).full(), weights.full())


def test_torch_functions_still_take_weights_whole() -> None:
    weights, _ = attended()
    torch.testing.assert_close(torch.exp(weights), weights.full().exp())
    torch.testing.assert_close(torch.stack([weights, weights])[1], weights.full())


class Model(nn.Module):
    def forward(self, x: Tensor, mask: masks.Mask) -> heedful.Attention:
        return heedful.scaled_dot_product_attention(
            x, x, x, mask, reduce=(heedful.Entropy(), heedful.TopK(2))
        )


def test_an_exported_program_takes_masks_and_returns_weights() -> None:
    def given(n: int) -> tuple[Tensor, masks.Mask]:
        return torch.randn(2, 3, n, 4), masks.causal() & masks.documents(torch.arange(n) // 3)

    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(Model(), given(5), dynamic_shapes=({2: length}, [{0: length}]))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for n in (5, 9):
        x, mask = given(n)
        found, expected = loaded(x, mask), Model()(x, mask)
        assert found.weights.shape == expected.weights.shape
        torch.testing.assert_close(found.output, expected.output)
        torch.testing.assert_close(found.weights.entropy(), expected.weights.entropy())
        torch.testing.assert_close(found.weights.received(), expected.weights.received())
        torch.testing.assert_close(found.weights[0, 1].full(), expected.weights[0, 1].full())
