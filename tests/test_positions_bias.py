"""Positions added to the scores: ALiBi and relative buckets."""

import copy
import pickle

import pytest
import torch

from heedful import scaled_dot_product_attention
from heedful._rows import Rows
from heedful.positions import Alibi, RelativeBias


def rows_of(index, start=0, *, heads=None, num_heads=6, num_keys=40, device="cpu") -> Rows:
    return Rows(
        batch=slice(0, 2),
        heads=slice(0, num_heads) if heads is None else heads,
        index=index,
        start=start,
        num_items=2,
        num_heads=num_heads,
        num_queries=20,
        num_keys=num_keys,
        device=torch.device(device),
    )


@pytest.mark.parametrize("num_heads", [1, 2, 4, 8, 16, 32])
def test_alibi_slopes_of_a_power_of_two_are_geometric(num_heads):
    slopes = Alibi(num_heads).slopes()
    expected = [2 ** (-8 / num_heads * (head + 1)) for head in range(num_heads)]
    torch.testing.assert_close(slopes, torch.tensor(expected))


@pytest.mark.parametrize("num_heads", [1, 2, 3, 5, 6, 7, 12, 20, 40, 71])
def test_alibi_slopes_are_those_of_bloom(num_heads):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    mask = torch.tensor([[1, 1]])
    slopes = bloom.build_alibi_tensor(mask, num_heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(Alibi(num_heads).slopes(), slopes)


@pytest.mark.parametrize("backend", ["panels", "reference"])
def test_alibi_is_as_exact_as_the_call(backend):
    """The slopes of 12 heads are no float32 numbers, and distances multiply what rounding them would cost."""
    query, key = torch.randn(2, 12, 3, 4).double(), torch.randn(2, 12, 301, 4).double()
    _, weights = scaled_dot_product_attention(query, key, key, attn_bias=Alibi(12), backend=backend)
    slopes = Alibi(12).slopes(dtype=torch.float64)
    distance = (torch.arange(298, 301)[:, None] - torch.arange(301)).abs()
    logits = query @ key.mT / 2 - slopes[:, None, None] * distance
    torch.testing.assert_close(weights.full(), logits.softmax(-1), rtol=1e-12, atol=0)


def test_alibi_favors_near_keys():
    """attention-gym PR#86: with the sign reversed, farther keys were favored."""
    bias = Alibi(2).bias(rows_of(slice(0, 3), num_heads=2), range(3))
    slopes = torch.tensor([2.0**-4, 2.0**-8])
    distance = torch.tensor([[0.0, 1, 2], [1, 0, 1], [2, 1, 0]])
    torch.testing.assert_close(bias, -slopes[:, None, None] * distance, rtol=0, atol=0)


@pytest.mark.parametrize("heads", [slice(0, 6), slice(2, 5), torch.tensor([5, 0])])
@pytest.mark.parametrize("index", [slice(3, 9), torch.tensor([4, 4, 0])])
@pytest.mark.parametrize("start", [0, 11, torch.tensor([4, 9])])
@pytest.mark.parametrize("make", [lambda: Alibi(6), lambda: RelativeBias(6, num_buckets=8, max_distance=20)])
def test_a_panel_is_that_part_of_the_whole(make, heads, index, start):
    bias = make()
    positions = torch.arange(9)[index] + (start[:, None] if isinstance(start, torch.Tensor) else start)
    distance = torch.arange(5, 17) - positions[..., None]
    if isinstance(bias, Alibi):
        whole = -bias.slopes()[:, None, None] * distance.abs().unsqueeze(-3)
    else:
        whole = bias.weight[bias.buckets(distance)].movedim(-1, -3)
    panel = bias.bias(rows_of(index, start, heads=heads), range(5, 17))
    torch.testing.assert_close(panel, whole[..., heads, :, :])


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (64, 1000)])
def test_relative_bias_is_t5s(bidirectional, num_buckets, max_distance):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    from transformers import T5Config

    config = T5Config(
        d_model=12,
        d_kv=2,
        num_heads=6,
        relative_attention_num_buckets=num_buckets,
        relative_attention_max_distance=max_distance,
        is_decoder=not bidirectional,
    )
    theirs = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = RelativeBias(6, num_buckets=num_buckets, max_distance=max_distance, bidirectional=bidirectional)
    with torch.no_grad():
        ours.weight.copy_(theirs.relative_attention_bias.weight)
    size = 2 * max_distance + 3
    expected = theirs.compute_bias(size, size)[0]
    panel = ours.bias(rows_of(slice(0, size), num_keys=size), range(size))
    torch.testing.assert_close(panel, expected, rtol=0, atol=0)


def test_relative_bias_gradient_counts_the_pairs_of_each_bucket():
    bias = RelativeBias(2, num_buckets=4, max_distance=3, bidirectional=False).double()
    panel = bias.bias(rows_of(slice(0, 5), num_heads=2), range(5))
    (gradient,) = torch.autograd.grad(panel[0].sum(), bias.weight)
    assert bias.tensors == (bias.weight,)
    counts = [15.0, 4.0, 3.0, 3.0]
    assert gradient.tolist() == [[count, 0.0] for count in counts]
    assert torch.autograd.gradcheck(
        lambda weight: torch.func.functional_call(
            _Panel(bias), {"bias.weight": weight}, (rows_of(slice(0, 5), num_heads=2), range(5))
        ),
        bias.weight,
    )


class _Panel(torch.nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.bias = bias

    def forward(self, rows, keys):
        return self.bias.bias(rows, keys)


def test_buckets_by_hand():
    """Eight buckets to distance 64: four exact ones, then one per doubling, and later keys in the first."""
    bias = RelativeBias(1, num_buckets=8, max_distance=64, bidirectional=False)
    distance = -torch.tensor([-5, 0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 10_000])
    assert bias.buckets(distance).tolist() == [0, 0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 7, 7, 7]


def test_modules_copy_and_pickle():
    rows = rows_of(slice(0, 4))
    for bias in (Alibi(6), RelativeBias(6)):
        for twin in (copy.deepcopy(bias), pickle.loads(pickle.dumps(bias))):
            torch.testing.assert_close(twin.bias(rows, range(9)), bias.bias(rows, range(9)), rtol=0, atol=0)


def test_meta_has_shapes():
    rows = rows_of(slice(0, 4), device="meta")
    assert RelativeBias(6, device="meta").bias(rows, range(9)).shape == (6, 4, 9)
    assert Alibi(6).bias(rows, range(9)).shape == (6, 4, 9)


def test_they_say_what_they_are():
    assert repr(Alibi(6)) == "Alibi(num_heads=6)"
    text = "RelativeBias(num_heads=6, num_buckets=32, max_distance=128, bidirectional=True)"
    assert repr(RelativeBias(6)) == text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Alibi(0), "num_heads must be an integer of at least 1, got 0."),
        (lambda: Alibi("4"), "num_heads must be an integer of at least 1, got '4'."),
        (lambda: Alibi(2.5), "num_heads must be an integer of at least 1, got 2.5."),
        (
            lambda: Alibi(4).bias(rows_of(slice(0, 2)), range(3)),
            "attn_bias: Alibi is for 4 heads, the query has 6. Write Alibi(6).",
        ),
        (
            lambda: RelativeBias(1).bias(rows_of(slice(0, 2)), range(3)),
            "attn_bias: RelativeBias is for 1 heads, the query has 6. Write RelativeBias(6).",
        ),
        (lambda: RelativeBias(0), "num_heads must be an integer of at least 1, got 0."),
        (
            lambda: RelativeBias(2, num_buckets=7),
            "num_buckets must be even and at least 4 with bidirectional=True, got 7.",
        ),
        (
            lambda: RelativeBias(2, num_buckets=1, bidirectional=False),
            "num_buckets must be at least 2, got 1.",
        ),
        (
            lambda: RelativeBias(2, num_buckets=32, max_distance=8),
            "max_distance must be above 8, the distances that have a bucket each; got 8.",
        ),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value) == message
