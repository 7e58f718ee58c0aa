"""Sizes of none, numbers at the edge of what floats and integers hold, and NaN where somebody sees it."""

import math
import sys

import pytest
import torch
from torch import Tensor

import heedful
from cases import attend, every_backend
from heedful import masks, scaled_dot_product_attention
from heedful.reductions import TransposedProduct

B, H, L, S, E = 2, 4, 6, 9, 8


def inputs(L: int = L, S: int = S, dtype: torch.dtype = torch.float32, **options) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(B, H, n, E).to(dtype).requires_grad_(**options) for n in (L, S, S)]


@every_backend
@pytest.mark.parametrize("transposed", [False, True])
def test_no_queries(backend: str, transposed: bool) -> None:
    query, key, value = (x.detach() for x in inputs(L=0))
    value = value.mT.contiguous().mT if transposed else value
    output, weights = attend(query, key, value, backend=backend, reduce=heedful.Received())
    assert output.shape == (B, H, 0, E)
    assert torch.equal(weights.received(), torch.zeros(B, H, S))
    assert weights.pooled(2, 3).shape == (B, H, 2, 3)
    assert torch.equal(weights.max_logit("head"), torch.full((B, H), -math.inf))
    assert torch.equal(weights.received("max"), torch.zeros(B, H, S))
    assert torch.equal(weights.received("max", per="kv_head"), torch.zeros(B, H, S))
    assert torch.equal(weights.reduce(heedful.Pooled(2, 3, "max"))[0], torch.zeros(B, H, 2, 3))


@every_backend
def test_no_keys(backend: str) -> None:
    query, key, value = inputs(S=0)
    _, weights = attend(query, key, value, backend=backend)
    assert weights.full().shape == weights[..., :, :].shape == (B, H, L, 0)
    assert weights[:, :, 2].shape == (B, H, 0)
    assert weights.by_key(torch.zeros(0, dtype=torch.long)).shape == (B, H, L, 0)
    assert torch.equal(weights @ torch.zeros(B, H, 0, 3), torch.zeros(B, H, L, 3))
    assert (weights.mT @ torch.zeros(B, H, L, 3)).shape == (B, H, 0, 3)


@every_backend
def test_no_heads(backend: str) -> None:
    query = torch.zeros(B, 0, L, E)
    key, value = (torch.randn(B, 2, S, E, requires_grad=True) for _ in range(2))
    output, weights = attend(query, key, value, backend=backend)
    assert (weights.mT @ torch.zeros(B, 0, L, 3)).shape == (B, 0, S, 3)
    assert weights[:, :, 2].shape == (B, 0, S)
    for how in ("sum", "max", "mean"):
        assert torch.equal(weights.received(how, per="kv_head"), torch.zeros(B, 2, S))
    assert weights[0].full().shape == (0, L, S)
    assert weights.head_mean().isnan().all()  # as torch has it: the mean of nothing
    for grad in torch.autograd.grad(output.sum(), (key, value)):
        assert torch.equal(grad, torch.zeros(B, 2, S, E))


FAR = {
    "everything": (masks.window(sys.maxsize), masks.causal(), None),
    "beyond 32 bits": (masks.window(2**32), masks.causal(), None),
    "ahead": (masks.window(1, 2**31), masks.window(1, S), None),
    "both": (masks.window(None, 2**40), None, None),
    "far behind": (masks.causal(), masks.dense(torch.zeros(L, S, dtype=torch.bool)), -(2**33)),
    "far ahead": (masks.causal(), None, 2**33),
}


@every_backend
@pytest.mark.parametrize("name", FAR)
def test_distances_beyond_32_bits(name: str, backend: str) -> None:
    far, near, start = FAR[name]
    found = attend(*inputs(), far, query_start=start, backend=backend).output
    torch.testing.assert_close(found, attend(*inputs(), near, backend=backend).output)


@every_backend
@pytest.mark.parametrize("start", [-(2**31) - 5, 2**31 + 5])
def test_positions_beyond_32_bits(start: int, backend: str) -> None:
    output, weights = attend(*inputs(), attn_bias=heedful.Alibi(H), query_start=start, backend=backend)
    true = attend(
        *(x.double() for x in inputs()), attn_bias=heedful.Alibi(H), query_start=start, backend="reference"
    )
    assert torch.isfinite(output).all()
    # The slopes are taken of distances that float32 rounds to multiples of 256.
    assert (weights.mean_distance().double() / true.weights.mean_distance() - 1).abs().max() < 1e-6


@every_backend
@pytest.mark.parametrize("L", [1, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_whose_sum_overflows_before_it_is_divided(dtype: torch.dtype, L: int, backend: str) -> None:
    query, key = torch.zeros(B, H, L, E, dtype=dtype), torch.zeros(B, H, 1000, E, dtype=dtype)
    value = torch.full((B, H, 1000, 3), 1e36, dtype=dtype)
    value[:, 1:] = 2
    output = attend(query, key, value, backend=backend).output
    torch.testing.assert_close(output, value[:, :, :1].expand_as(output), rtol=1e-4, atol=0)


@every_backend
def test_minus_infinity_forbids_whatever_another_bias_says(backend: str) -> None:
    forbids, tempts = torch.zeros(L, S), torch.zeros(L, S)
    forbids[:, 3], tempts[:, 3] = -torch.inf, torch.inf
    output = attend(*inputs(), attn_bias=(forbids, tempts), backend=backend).output
    assert torch.equal(output, attend(*inputs(), attn_bias=forbids, backend=backend).output)


@every_backend
def test_a_tiny_softcap_is_a_cap(backend: str) -> None:
    weights = attend(*inputs(), softcap=1e-50, backend=backend).weights
    torch.testing.assert_close(weights.full(), torch.full((B, H, L, S), 1 / S))


@every_backend
def test_a_nan_that_some_see_leaves_the_gradient_of_other_keys_alone(backend: str) -> None:
    query, key, value = (x.detach() for x in inputs())
    keep = torch.ones(L, S, dtype=torch.bool)
    keep[-1, 2] = False  # the last query sees the NaN, and not key 2
    keep[:-1, 4] = False
    clean = key.clone().requires_grad_()
    output = attend(query[:, :, :-1], clean, value, keep[:-1], backend=backend).output
    (expected,) = torch.autograd.grad(output.sum(), clean)
    key[:, :, 4] = torch.nan
    key.requires_grad_()
    (grad,) = torch.autograd.grad(attend(query, key, value, keep, backend=backend).output.sum(), key)
    torch.testing.assert_close(grad[:, :, 2], expected[:, :, 2])
    assert grad[:, :, 3].isnan().all()


@every_backend
def test_autocast_does_not_reach_the_gradient(backend: str) -> None:
    tensors = inputs()
    expected = torch.autograd.grad(attend(*tensors, backend=backend).output.square().sum(), tensors)
    output = attend(*tensors, backend=backend).output.square().sum()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(output, tensors, create_graph=True)
    if backend != "reference":  # which is made of torch's operations, and their gradients are torch's
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)


@every_backend
def test_a_product_with_the_transpose_has_the_gradient_of_what_it_is_multiplied_with(backend: str) -> None:
    query, key, value = (x.detach() for x in inputs())
    y = torch.randn(B, H, L, 3, requires_grad=True)
    weights = attend(query, key, value, backend=backend).weights
    (grad,) = torch.autograd.grad((weights.mT @ y).sum(), y)
    torch.testing.assert_close(grad, torch.ones(B, H, L, 3))


def test_a_product_in_several_steps_is_not_rounded_to_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    native = pytest.importorskip("heedful.backends.native._visible")
    query, key, value = (x.detach() for x in inputs(L=70, S=90, dtype=torch.bfloat16))
    bias, y = heedful.RelativeBias(H), torch.randn(B, H, 70, 3)
    monkeypatch.setattr(native, "ELEMENTS", 4 * 90 * H)
    weights = scaled_dot_product_attention(query, key, value, attn_bias=bias).weights
    wide = [x.float() for x in (query, key, value)]
    expected = scaled_dot_product_attention(*wide, attn_bias=bias, backend="reference").weights.full().mT @ y
    torch.testing.assert_close(weights.reduce(TransposedProduct(y))[0], expected, rtol=1e-4, atol=1e-4)


def test_one_question_twice_in_a_compiled_call() -> None:
    def twice(*tensors: Tensor) -> tuple[Tensor, ...]:
        asked = (heedful.Entropy(), heedful.TopK(2), heedful.Entropy())
        weights = scaled_dot_product_attention(*tensors, reduce=asked).weights
        return weights.entropy(), weights.topk(2).values

    tensors = [x.detach() for x in inputs()]
    for a, b in zip(
        torch.compile(twice, backend="aot_eager", fullgraph=True)(*tensors), twice(*tensors), strict=True
    ):
        torch.testing.assert_close(a, b)


@every_backend
@pytest.mark.parametrize("softcap", [None, 20.0])
@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FC00001, 0x7FC001FF])
@pytest.mark.parametrize("queries", [3, 40])
def test_nan_with_any_payload(backend: str, softcap: float | None, bits: int, queries: int) -> None:
    """What no float may lose: the lowest bits of a NaN are whatever wrote it."""
    query, key, value = (x.detach() for x in inputs(L=queries))
    key[1, :, 2, 3] = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    output, weights = attend(query, key, value, softcap=softcap, backend=backend, reduce=heedful.Entropy())
    assert output[1].isnan().all()
    assert weights.entropy()[1].isnan().all()
    assert output[0].isfinite().all()


@every_backend
def test_a_tiny_scale(backend: str) -> None:
    query, key, value = (x.detach() for x in inputs())
    output, weights = attend(query, key, value, scale=1e-37, backend=backend, reduce=heedful.Entropy())
    torch.testing.assert_close(output, value.mean(-2, keepdim=True).expand_as(output), rtol=0, atol=1e-6)
    torch.testing.assert_close(weights.entropy(), torch.full((B, H, L), math.log(S)), rtol=0, atol=1e-6)


@every_backend
def test_the_distance_of_what_a_sink_leaves(backend: str) -> None:
    """A sink above the scores by 120 leaves weights that float32 cannot hold, and their proportions as they were."""
    query, key, value = (x.detach() for x in inputs())
    alone = attend(query, key, value, masks.causal(), query_start=0, backend=backend).weights.mean_distance()
    sinks = torch.full((H,), 120.0)
    with_sink = attend(query, key, value, masks.causal(), query_start=0, sinks=sinks, backend=backend)
    torch.testing.assert_close(with_sink.weights.mean_distance(), alone)


@every_backend
def test_lists_of_rows_and_columns(backend: str) -> None:
    query, key, value = (x.detach() for x in inputs())
    weights = attend(query, key, value, backend=backend).weights
    rows, columns = weights.reduce(heedful.QueryRows([4, 0]), heedful.KeyColumns(torch.tensor([7, 2])))
    torch.testing.assert_close(rows, weights.full()[:, :, [4, 0]])
    torch.testing.assert_close(columns, weights.full()[..., [7, 2]])


@every_backend
@pytest.mark.parametrize("far", [1e2, 1e4, 1e6])
@pytest.mark.parametrize("sinks", [False, True])
def test_entropy_of_scores_that_are_all_far_from_0(sinks: bool, far: float, backend: str) -> None:
    """Only differences of scores matter, so nothing is lost but what the sum of score and bias itself rounds away."""
    query, key = (torch.randn(2, 4, n, 8).mul(256).round() / 256 for n in (5, 7))
    query = torch.zeros_like(query)
    query[..., 0], key[..., 0] = 1, (key[..., 0] * 4).round() / 4
    sink = {"sinks": torch.full((4,), -far)} if sinks else {}
    bias = torch.full((5, 7), -far)
    found = attend(query, key, key, scale=1, attn_bias=bias, **sink, backend=backend).weights.entropy()
    near = {"sinks": torch.zeros(4)} if sinks else {}
    expected = attend(
        query.double(), key.double(), key.double(), scale=1, **near, backend="reference"
    ).weights
    torch.testing.assert_close(found.double(), expected.entropy(), rtol=0, atol=2e-6)


@every_backend
def test_entropy_where_a_padding_bias_leaves_nothing(backend: str) -> None:
    """`finfo.min` for all keys, as transformers' masks have it for an item that is padding alone: all keys alike."""
    bias = torch.full((5, 7), torch.finfo(torch.float32).min)
    weights = attend(*(torch.randn(2, 4, n, 8) for n in (5, 7, 7)), attn_bias=bias, backend=backend).weights
    torch.testing.assert_close(weights.entropy(), torch.full((2, 4, 5), math.log(7)))


@every_backend
def test_only_minus_infinity_forbids(backend: str) -> None:
    """Keys with a bias of `finfo.min` are seen, though they weigh nothing: they count, and have their places."""
    bias = torch.zeros(2, 1, 5, 7)
    bias[:, :, :, 2:5] = torch.finfo(torch.float32).min
    bias[:, :, 3, :] = torch.finfo(torch.float32).min
    bias[1, :, :, 6] = -math.inf
    weights = attend(*(torch.randn(2, 4, n, 8) for n in (5, 7, 7)), attn_bias=bias, backend=backend).weights
    assert weights.max_logit().isfinite().all()
    found = weights.topk(7).indices.sort(-1).values
    assert torch.equal(found[0], torch.arange(7).expand(4, 5, 7))
    assert torch.equal(found[1], torch.tensor([-1, 0, 1, 2, 3, 4, 5]).expand(4, 5, 7))
    assert weights.topk(7).indices[1, :, :, -1].eq(-1).all()
    torch.testing.assert_close(weights.received("mean"), weights.received() / 5)


@every_backend
def test_only_minus_infinity_forbids_in_gradients_too(backend: str) -> None:
    """A row of `finfo.min` alone is uniform, so its entropy does not change with the query."""
    query, key, value = (torch.randn(2, 4, n, 8, requires_grad=True) for n in (5, 7, 7))
    bias = torch.full((5, 7), torch.finfo(torch.float32).min)
    weights = attend(query, key, value, attn_bias=bias, backend=backend).weights
    for again in (False, True):
        found = torch.autograd.grad(weights.entropy().sum(), query, create_graph=again, retain_graph=True)[0]
        torch.testing.assert_close(found, torch.zeros_like(query), rtol=0, atol=1e-6)


@every_backend
@pytest.mark.parametrize("far", [-1e4, -1e9, torch.finfo(torch.float32).min])
def test_a_sink_far_above_all_scores(backend: str, far: float) -> None:
    query, key, value = (torch.randn(2, 4, n, 8) for n in (5, 7, 7))
    sinks = torch.tensor([-2.4, 0.3, 1.7, 5.1], requires_grad=True)
    weights = attend(
        query, key, value, attn_bias=torch.full((5, 7), far), sinks=sinks, backend=backend
    ).weights
    torch.testing.assert_close(weights.logsumexp(), sinks[:, None].expand(2, 4, 5))
    assert torch.equal(weights.sink_share(), torch.ones(2, 4, 5))
    assert torch.equal(weights.entropy(), torch.zeros(2, 4, 5))
    for answer, expected in ((weights.logsumexp(), 10.0), (weights.sink_share(), 0.0)):
        gradient = torch.autograd.grad(answer.sum(), sinks, retain_graph=True)[0]
        torch.testing.assert_close(gradient, torch.full((4,), expected))


def test_an_edit_finds_the_weights_from_their_logits_again() -> None:
    def again(panel: heedful.Panel) -> Tensor:
        return (panel.logits - panel.logsumexp[..., None]).exp()

    inputs = [torch.randn(2, 4, n, 8) for n in (5, 7, 7)]
    bias = torch.zeros(5, 7)
    bias[2:, 3:] = bias[4] = torch.finfo(torch.float32).min
    for backend in ("panels", "reference"):
        plain, found = (
            attend(*inputs, attn_bias=bias, edit=edit, backend=backend).weights for edit in (None, again)
        )
        torch.testing.assert_close(found.full()[:, :, :4], plain.full()[:, :, :4])
        assert found.full().isfinite().all()


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_entropy_of_scores_farther_apart_than_a_float_reaches(backend: str, dtype: torch.dtype) -> None:
    bias = torch.zeros(5, 7, dtype=dtype)
    bias[:, 2], bias[:, 4] = torch.finfo(dtype).max * 0.9, torch.finfo(dtype).min * 0.9
    inputs = [torch.randn(2, 4, n, 8, dtype=dtype) for n in (5, 7, 7)]
    for sinks in (None, torch.zeros(4, dtype=dtype)):
        weights = attend(*inputs, attn_bias=bias, sinks=sinks, backend=backend).weights
        torch.testing.assert_close(weights.entropy(), torch.zeros(2, 4, 5, dtype=dtype))


@every_backend
@pytest.mark.parametrize("gap", [60.0, 70.0, 88.0, 95.0, 103.0, 140.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rest_that_is_hardly_there_is_shared_out_or_nothing(
    dtype: torch.dtype, gap: float, backend: str
) -> None:
    """What is left of a row may be too small to divide by."""
    query = torch.ones(B, H, L, 1).to(dtype).requires_grad_()
    key = torch.tensor([gap, 0.0, -2.0, -30.0]).expand(B, H, 4)[..., None].to(dtype).requires_grad_()
    value = torch.randn(B, H, 4, E).to(dtype)
    for edit in (heedful.without_sink(), heedful.cut(slice(None), 0, renormalize=True)):
        output, weights = attend(query, key, value, scale=1.0, edit=edit, backend=backend)
        rest = key[..., 1:, 0].double().softmax(-1) if gap < 65 else torch.zeros(B, H, 3).double()
        expected = torch.cat([torch.zeros(B, H, 1), rest], -1)[:, :, None].expand(B, H, L, 4)
        torch.testing.assert_close(weights.full().double(), expected, rtol=1e-5, atol=1e-12)
        torch.testing.assert_close(output.double(), expected @ value.double(), rtol=2e-2, atol=2e-2)
        assert weights.entropy().isfinite().all()
        for grad in torch.autograd.grad(2**16 * output.square().sum(), (query, key)):
            assert grad.isfinite().all()
