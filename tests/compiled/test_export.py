"""torch.export, torch's own checks of the operators, and shapes on the meta device."""

import io

import pytest
import torch
from torch import Tensor, nn

import compiled_calls as calls
import heedful
from heedful import masks
from heedful._call import make_call
from heedful.backends._travel import Luggage


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = heedful.MultiHeadAttention(8, 4, position=heedful.Rotary(), sinks=True)

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        mask = masks.causal() & masks.documents(ids)
        output, weights = self.attention(x, mask=mask, reduce=heedful.Entropy())
        return output, weights.entropy(), weights.by_key(ids), weights.distance()


def test_an_exported_program_is_saved_and_runs_for_other_lengths() -> None:
    model, length = Model(), torch.export.Dim("length", min=2, max=64)
    x, ids = torch.randn(2, 5, 8), torch.tensor([0, 0, 1, 1, 1])
    program = torch.export.export(model, (x, ids), dynamic_shapes=({1: length}, {0: length}))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for n in (5, 9):
        x, ids = torch.randn(2, n, 8), torch.arange(n) // 3
        torch.testing.assert_close(loaded(x, ids), model(x, ids))


def test_an_exported_program_has_gradients() -> None:
    model, x, ids = Model(), torch.randn(2, 5, 8, requires_grad=True), torch.tensor([0, 0, 1, 1, 1])
    exported = torch.export.export(model, (x, ids)).module()
    found, expected = (torch.autograd.grad(each(x, ids)[0].sin().sum(), x) for each in (exported, model))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "asked", [(), (heedful.Entropy(), heedful.TopK(2), heedful.Received("mean"))], ids=len
)
def test_torch_finds_nothing_wrong_with_the_operators(asked: tuple) -> None:
    query, key, value, bias, sinks = calls.tensors()
    call = make_call(query, key, value, masks.causal(), bias, None, None, 2.0, sinks, 0.0, None)
    luggage = Luggage()
    text = luggage.pack((call, asked, True, "auto"))
    parts = luggage.integers, luggage.floats, text
    torch.library.opcheck(torch.ops.heedful.attend.default, (luggage.tensors, *parts))

    plain = [x.detach() for x in luggage.tensors]
    results = torch.ops.heedful.attend(plain, *parts)
    grads = [torch.randn_like(x) if x.is_floating_point() else None for x in results]
    torch.library.opcheck(
        torch.ops.heedful.attend_gradient.default, (plain, grads, [True] * len(plain), *parts)
    )


@pytest.mark.parametrize("mask", ["none", "causal", "lengths", "padding", "documents"])
def test_shapes_on_the_meta_device(mask: str) -> None:
    def found(device: str) -> list[tuple]:
        made = {
            "none": lambda: None,
            "causal": masks.causal,
            "lengths": lambda: masks.lengths(torch.tensor([3, 6], device=device)),
            "padding": lambda: masks.padding(calls.KEEP.to(device)),
            "documents": lambda: masks.documents(calls.IDS.to(device)),
        }
        inputs = [torch.empty(shape, device=device) for shape in calls.SIZES.values()]
        output, weights = heedful.scaled_dot_product_attention(*inputs, made[mask](), dropout_p=0.1)
        answers = [
            output,
            weights.entropy(),
            *weights.topk(2),
            weights.received(per="kv_head"),
            weights.distance(),
            weights.max_logit("head"),
            weights.pooled(2, 3),
            weights[..., -1, :],
            weights @ inputs[2],
            weights.mT @ inputs[0],
        ]
        assert {x.device.type for x in answers} == {device}
        return [(tuple(x.shape), x.dtype) for x in answers]

    assert found("meta") == found("cpu")
