"""What a call keeps of its tensors, and what it makes of tensors that are not plain memory."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import heedful
from cases import attend
from heedful import masks, scaled_dot_product_attention

B, H, L, S, E = 2, 4, 6, 9, 8


def inputs(**options) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(B, H, n, E, **options) for n in (L, S, S)]


@pytest.mark.parametrize("backend", ["native", "panels"])
def test_hooks_on_saved_tensors_see_and_replace_all_of_them(backend: str) -> None:
    """So that checkpoints free them and `save_on_cpu` moves them."""
    query, key, value = inputs(requires_grad=True)
    bias = torch.randn(H, L, S, requires_grad=True)
    sinks = torch.randn(H, requires_grad=True)
    tensors = (query, key, value, bias, sinks)

    def gradients() -> tuple[Tensor, ...]:
        output, weights = attend(
            *(x * 1 for x in tensors[:3]), attn_bias=bias[None], sinks=sinks, backend=backend
        )
        loss = output.square().sum() + weights.entropy().sum()
        return torch.autograd.grad(loss, tensors)

    plain = gradients()
    with saved_tensors_hooks(lambda x: x, lambda x: x.clone()):
        cloned = gradients()
    for a, b in zip(plain, cloned, strict=True):
        torch.testing.assert_close(a, b)
    with saved_tensors_hooks(lambda x: x, lambda x: x * 2 if x.is_floating_point() else x):
        doubled = gradients()
    for a, b in zip(plain, doubled, strict=True):
        assert not torch.allclose(a, b)


@pytest.mark.parametrize("backend", ["native", "panels"])
def test_a_checkpoint_keeps_nothing_of_what_is_made_in_it(backend: str) -> None:
    saved: list[Tensor] = []

    def layer(x: Tensor) -> Tensor:
        with saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            return attend(x * 2, x * 3, x * 4, masks.causal(), backend=backend).output

    x = torch.randn(B, H, L, E, requires_grad=True)
    function = layer(x).grad_fn
    while function is not None and not hasattr(function, "parcel"):
        function = function.next_functions[0][0]
    assert function is not None
    assert not [x for x in vars(function).values() if isinstance(x, Tensor)]
    # Query, key and value; the kernel keeps some numbers of every row too.
    assert len(saved) == (4 if backend == "native" else 3)
    again = checkpoint(layer, x, use_reentrant=False)
    torch.testing.assert_close(
        torch.autograd.grad(again.sum(), x)[0], torch.autograd.grad(layer(x).sum(), x)[0]
    )


@pytest.mark.parametrize("backend", ["native", "panels"])
def test_a_mask_that_is_changed_in_place_is_noticed(backend: str) -> None:
    query, key, value = inputs(requires_grad=True)
    keep = torch.ones(L, S, dtype=torch.bool)
    output, weights = attend(query, key, value, keep, backend=backend)
    keep[:, 3] = False
    with pytest.raises(RuntimeError, match="mask was changed in place after the call"):
        weights.entropy()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("name", ["attn_bias", "sinks"])
def test_a_changed_bias_or_sink_is_noticed(name: str) -> None:
    tensor = torch.zeros(L, S) if name == "attn_bias" else torch.zeros(H)
    _, weights = scaled_dot_product_attention(*inputs(), **{name: tensor})
    tensor.add_(1)
    with pytest.raises(RuntimeError, match=f"{name} was changed in place after the call"):
        weights.entropy()


def negative_by_a_flag(x: Tensor) -> Tensor:
    """The same numbers; torch remembers that it has yet to turn their sign."""
    turned = torch.complex(torch.zeros_like(x), -x).conj().imag
    assert turned.is_neg()
    return turned


@pytest.mark.parametrize("which", range(4), ids=["query", "key", "value", "attn_bias"])
def test_tensors_that_are_negative_by_a_flag(which: int) -> None:
    tensors = [*inputs(), torch.randn(B, H, L, S)]
    flagged = list(tensors)
    flagged[which] = negative_by_a_flag(tensors[which])
    expected, found = (
        scaled_dot_product_attention(*given[:3], attn_bias=given[3]).output for given in (tensors, flagged)
    )
    assert torch.equal(found, expected)


def test_a_gradient_that_is_negative_by_a_flag() -> None:
    tensors = inputs(requires_grad=True)
    output = scaled_dot_product_attention(*tensors).output
    grad = torch.randn_like(output)
    expected = torch.autograd.grad(output, tensors, grad, retain_graph=True)
    for a, b in zip(torch.autograd.grad(output, tensors, negative_by_a_flag(grad)), expected, strict=True):
        assert torch.equal(a, b)


def test_a_tensor_that_is_zero_by_a_flag() -> None:
    _, key, value = inputs()
    output, weights = scaled_dot_product_attention(torch._efficientzerotensor((B, H, L, E)), key, value)
    torch.testing.assert_close(output, value.mean(2, keepdim=True).expand_as(output))
    torch.testing.assert_close(weights.logsumexp(), torch.full((B, H, L), S).log())


def test_fake_tensors_have_shapes_only() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        query, key, value = inputs()
        output, weights = scaled_dot_product_attention(query, key, value, masks.causal())
        assert output.shape == (B, H, L, E)
        assert weights.topk(3).indices.shape == (B, H, L, 3)


def test_a_class_of_tensors_that_handles_operations_itself() -> None:
    first, second = inputs(), inputs()
    both = [TwoTensor(a, b) for a, b in zip(first, second, strict=True)]
    output = scaled_dot_product_attention(*both, masks.causal()).output
    torch.testing.assert_close(output.a, scaled_dot_product_attention(*first, masks.causal()).output)
    with pytest.raises(NotImplementedError, match="a class of tensors that handles operations itself"):
        scaled_dot_product_attention(*both, backend="native")


def test_who_only_looks_on_changes_no_bit() -> None:
    expected = scaled_dot_product_attention(*inputs()).output
    with FlopCounterMode(display=False):
        assert torch.equal(scaled_dot_product_attention(*inputs()).output, expected)


def test_a_tracer_is_told_of_the_kernel_and_not_left_with_part_of_a_graph() -> None:
    with pytest.raises(NotImplementedError, match="a mode that traces or fakes operations"):
        make_fx(lambda x: scaled_dot_product_attention(x, x, x, backend="native").output)(
            torch.randn(B, H, L, E)
        )


@pytest.mark.parametrize("backend", ["native", "panels"])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpoint_has_the_same_gradient(use_reentrant: bool, backend: str) -> None:
    tensors = [*inputs(requires_grad=True), torch.randn(H, L, S, requires_grad=True)]

    def layer(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        output, weights = attend(query, key, value, masks.causal(), attn_bias=bias[None], backend=backend)
        return output.square().sum() + weights.entropy().sum()

    found = checkpoint(layer, *tensors, use_reentrant=use_reentrant)
    found.backward()
    expected = torch.autograd.grad(layer(*tensors), tensors)
    for x, gradient in zip(tensors, expected, strict=True):
        assert torch.equal(x.grad, gradient)


def test_one_tensor_in_several_places_has_the_sum_of_its_gradients() -> None:
    x = torch.randn(B, H, L, E, requires_grad=True)
    call = partial(scaled_dot_product_attention, reduce=heedful.Entropy())
    copies = [x.detach().clone().requires_grad_() for _ in range(3)]

    def loss(*given: Tensor) -> Tensor:
        output, weights = call(*given)
        return output.square().sum() + weights.entropy().sum()

    expected = sum(torch.autograd.grad(loss(*copies), copies))
    torch.testing.assert_close(torch.autograd.grad(loss(x, x, x), x)[0], expected)
