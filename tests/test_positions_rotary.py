"""Rotary positions, by their definition and against transformers' own functions."""

import copy
import math
import pickle

import pytest
import torch

from heedful.positions import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    ProportionalScaling,
    Rotary,
    YarnScaling,
)


def by_definition(x, positions, pairs, base=10000.0):
    """Each pair as a complex number, multiplied by exp(i * angle), in float64."""
    turned = x.clone().double()
    for number, (first, second) in enumerate(pairs):
        angles = positions.double() * base ** (-2 * number / (2 * len(pairs)))
        pair = torch.complex(x[..., first].double(), x[..., second].double())
        pair = pair * torch.polar(torch.ones_like(angles), angles)
        turned[..., first], turned[..., second] = pair.real, pair.imag
    return turned


def pairs_of(layout, dim):
    half = dim // 2
    return [(i, i + half) if layout == "half" else (2 * i, 2 * i + 1) for i in range(half)]


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rotary_dim", [None, 6])
@pytest.mark.parametrize("positions", [0, 9, torch.tensor([5, 0, 7]), torch.tensor([[5, 0, 7], [1, 2, 1]])])
def test_each_pair_turns_by_its_angle(layout, rotary_dim, positions):
    x = torch.randn(2, 4, 3, 10, dtype=torch.float64)
    ids = torch.arange(positions, positions + 3) if isinstance(positions, int) else positions
    expected = by_definition(x, ids if ids.ndim == 1 else ids[:, None], pairs_of(layout, rotary_dim or 10))
    turned = Rotary(layout=layout, rotary_dim=rotary_dim).rotate(x, positions)
    torch.testing.assert_close(turned, expected)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (2, 5, 3, 4), (2, 1, 5, 3, 4)])
def test_any_number_of_leading_sizes(shape):
    x = torch.randn(shape)
    turned = Rotary().rotate(x, 5)
    one_by_one = [Rotary().rotate(matrix, 5) for matrix in x.reshape(-1, 3, 4)]
    torch.testing.assert_close(turned.reshape(-1, 3, 4), torch.stack(one_by_one))
    if len(shape) > 2:
        ids = torch.tensor([[5, 6, 7], [0, 3, 1]])
        torch.testing.assert_close(Rotary().rotate(x, ids)[1], Rotary().rotate(x[1], ids[1]))


def test_scores_depend_on_distance_only():
    query, key = torch.randn(2, 1, 8, dtype=torch.float64)
    rotary = Rotary(base=30.0)
    near = rotary.rotate(query, 7) @ rotary.rotate(key, 4).mT
    far = rotary.rotate(query, 907) @ rotary.rotate(key, 904).mT
    torch.testing.assert_close(near, far)


def test_layouts_agree_after_a_permutation_and_on_the_first_token():
    """transformers#25199: weights of one layout gave a right first token in the other, then garbage."""
    x = torch.randn(2, 3, 2, 4)
    order = torch.tensor([0, 2, 1, 3])
    half, interleaved = Rotary(), Rotary(layout="interleaved")
    torch.testing.assert_close(interleaved.rotate(x)[..., order], half.rotate(x[..., order]), rtol=0, atol=0)
    for rotary in (half, interleaved):
        torch.testing.assert_close(rotary.rotate(x)[..., 0, :], x[..., 0, :], rtol=0, atol=0)
    assert not torch.allclose(half.rotate(x)[..., 1, :], interleaved.rotate(x)[..., 1, :])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_angles_are_float32_whatever_the_dtype(dtype):
    """gpt-neox#1003: in half precision a cosine was off by 0.78 at position 1857, an angle by half a turn at 4096."""
    x = torch.randn(1, 2, 3, 32).to(dtype)
    for start in (256, 1857, 4096):
        expected = by_definition(x, torch.arange(start, start + 3), pairs_of("half", 32))
        turned = Rotary().rotate(x, start)
        assert turned.dtype == dtype
        # An angle of 4096 radians in float32 is right to 4096 * 2**-23; the result is rounded once.
        budget = (torch.finfo(dtype).eps / 2 + start * 2**-23) * x.abs().max().item() * 2
        torch.testing.assert_close(turned.double(), expected, rtol=0, atol=budget)


def test_half_precision_is_the_rounded_float32_result():
    x = torch.randn(2, 3, 5, 8).bfloat16()
    torch.testing.assert_close(
        Rotary().rotate(x, 999), Rotary().rotate(x.float(), 999).bfloat16(), rtol=0, atol=0
    )


def test_gradient_is_exact():
    x = torch.randn(2, 3, 4, 6, dtype=torch.float64, requires_grad=True)
    for layout in ("half", "interleaved"):
        rotary = Rotary(layout=layout, rotary_dim=4)
        assert torch.autograd.gradcheck(lambda x, rotary=rotary: rotary.rotate(x, 5), x)


def test_empty_and_meta():
    assert Rotary().rotate(torch.zeros(2, 3, 0, 4)).shape == (2, 3, 0, 4)
    assert Rotary().rotate(torch.zeros(0, 3, 5, 4), torch.zeros(0, 5, dtype=torch.int64)).shape == (
        0,
        3,
        5,
        4,
    )
    assert Rotary(scaling=DynamicNTKScaling(2.0, 4)).rotate(torch.zeros(2, 0, 4)).shape == (2, 0, 4)
    turned = Rotary().rotate(torch.zeros(2, 3, 5, 4, device="meta", dtype=torch.float16), 7)
    assert (turned.shape, turned.dtype, turned.device.type) == ((2, 3, 5, 4), torch.float16, "meta")


SHORT, LONG = tuple(1.0 + i / 7 for i in range(8)), tuple(2.0 + i for i in range(8))

# transformers' rope_parameters, and the same by hand. Heads of 16, original length 64, grown to 256.
SCALINGS = {
    "default": ({"rope_type": "default"}, None),
    "linear": ({"rope_type": "linear", "factor": 4.0}, LinearScaling(4.0)),
    "dynamic": ({"rope_type": "dynamic", "factor": 4.0}, DynamicNTKScaling(4.0, 256)),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        YarnScaling(4.0, 64),
    ),
    "yarn-options": (
        {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "mscale": 0.7,
            "mscale_all_dim": 0.4,
            "truncate": False,
        },
        YarnScaling(8.0, 64, None, 16.0, 2.0, 0.7, 0.4, truncate=False),
    ),
    "yarn-attention-factor": (
        {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "attention_factor": 1.5,
        },
        YarnScaling(8.0, 64, 1.5),
    ),
    "longrope": (
        {
            "rope_type": "longrope",
            "short_factor": list(SHORT),
            "long_factor": list(LONG),
            "original_max_position_embeddings": 64,
            "factor": 4.0,
        },
        LongRopeScaling(SHORT, LONG, 64, 4.0),
    ),
    "llama3": (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        Llama3Scaling(8.0, 1.0, 4.0, 64),
    ),
}


def transformers_rotary(parameters):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=32,
        num_attention_heads=2,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": 500.0, **parameters},
    )
    return llama, llama.LlamaRotaryEmbedding(config)


@pytest.mark.parametrize("positions", [(0, 50), (40, 90), (300, 340)])
@pytest.mark.parametrize("name", SCALINGS)
def test_scaling_is_transformers(name, positions):
    """Before the original length, across it, and beyond the longest."""
    parameters, scaling = SCALINGS[name]
    llama, module = transformers_rotary(parameters)
    ids = torch.arange(*positions)[None]
    query, key = torch.randn(2, 3, 2, ids.shape[1], 16)[:, :1].unbind()
    cos, sin = module(query, ids)
    rotary = Rotary(base=500.0, scaling=scaling)
    assert Rotary.from_parameters({"rope_theta": 500.0, **parameters}, 16, max_length=256) == rotary
    our_cos, our_sin = rotary.tables(ids, 16)
    # One rounding of an angle of up to 340 radians separates equal formulas; transformers differs in their order.
    torch.testing.assert_close(our_cos, cos[..., :8], rtol=0, atol=340 * 2**-22)
    torch.testing.assert_close(our_sin, sin[..., :8], rtol=0, atol=340 * 2**-22)
    expected = llama.apply_rotary_pos_emb(query, key, cos, sin)
    for ours, theirs in zip((rotary.rotate(query, ids), rotary.rotate(key, ids)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=5 * 340 * 2**-22)


@pytest.mark.parametrize("name", ["default", "linear"])
def test_plain_tables_are_transformers_to_the_bit(name):
    parameters, scaling = SCALINGS[name]
    _, module = transformers_rotary(parameters)
    ids = torch.arange(100_000)[None]
    cos, sin = module(torch.zeros(1), ids)
    ours = Rotary(base=500.0, scaling=scaling).tables(ids, 16)
    torch.testing.assert_close(ours, (cos[..., :8], sin[..., :8]), rtol=0, atol=0)


@pytest.mark.parametrize("name", [name for name in SCALINGS if name != "default"])
@pytest.mark.parametrize("length", [50, 100, 400])
def test_frequencies_are_those_of_transformers_functions(name, length):
    parameters, scaling = SCALINGS[name]
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    _, module = transformers_rotary(parameters)
    frequencies, magnitude = rope.ROPE_INIT_FUNCTIONS[parameters["rope_type"]](module.config, seq_len=length)
    ours = scaling.frequencies(16, 500.0, torch.tensor([length]), torch.float32)
    torch.testing.assert_close(ours, frequencies, rtol=2e-6, atol=0)
    assert scaling.magnitude == magnitude


@pytest.mark.parametrize("share", [0.0, 0.25, 0.75, 1.0])
def test_proportional_is_transformers(share):
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    parameters = {
        "rope_theta": 500.0,
        "rope_type": "proportional",
        "partial_rotary_factor": share,
        "factor": 2.0,
    }
    config = LlamaConfig(hidden_size=32, num_attention_heads=2, rope_parameters=parameters)
    frequencies, _ = rope.ROPE_INIT_FUNCTIONS["proportional"](config)
    rotary = Rotary.from_parameters(parameters, 16)
    assert rotary == Rotary(base=500.0, scaling=ProportionalScaling(share, 2.0))
    ours = rotary.scaling.frequencies(16, 500.0, torch.tensor([9]), torch.float32)
    torch.testing.assert_close(ours, frequencies, rtol=2e-7, atol=0)


def test_interleaved_and_partial_are_gptjs():
    gptj = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    x = torch.randn(2, 7, 3, 12)  # GPT-J keeps heads after positions
    ids = torch.stack([torch.arange(7), torch.arange(5, 12)])
    table = gptj.create_sinusoidal_positions(20, 8)[ids]
    sin, cos = table.chunk(2, dim=-1)
    theirs = torch.cat((gptj.apply_rotary_pos_emb(x[..., :8], sin, cos), x[..., 8:]), dim=-1)
    ours = Rotary(layout="interleaved", rotary_dim=8).rotate(x.transpose(1, 2), ids).transpose(1, 2)
    torch.testing.assert_close(ours, theirs)


def test_partial_factor_of_a_configuration():
    rotary = Rotary.from_parameters(
        {"rope_theta": 100.0, "partial_rotary_factor": 0.25}, 32, layout="interleaved"
    )
    assert rotary == Rotary(base=100.0, layout="interleaved", rotary_dim=8)


def test_explicit_factor_wins_over_the_ratio_of_lengths():
    """transformers#38224: an explicit factor was ignored in favor of max_position_embeddings / original."""
    given = {"rope_type": "yarn", "original_max_position_embeddings": 64}
    assert Rotary.from_parameters(given, 64, max_length=512).scaling == YarnScaling(8.0, 64)
    assert Rotary.from_parameters({**given, "factor": 4.0}, 64, max_length=512).scaling == YarnScaling(
        4.0, 64
    )


def test_length_comes_from_positions_and_each_item_has_its_own():
    """transformers#25104: the length was once read from the head axis, and positions were doubled."""
    rotary = Rotary(scaling=DynamicNTKScaling(2.0, 4))
    x = torch.randn(2, 7, 3, 6)
    ids = torch.tensor([[0, 1, 2], [7, 8, 9]])
    both = rotary.rotate(x, ids)
    torch.testing.assert_close(both[0], Rotary().rotate(x[0], ids[0]))
    grown = Rotary(base=10000.0 * (2.0 * 10 / 4 - 1) ** (6 / 4))
    torch.testing.assert_close(both[1], grown.rotate(x[1], ids[1]))


def test_ntk_is_a_larger_base():
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(
        Rotary(base=100.0, scaling=NTKScaling(3.0)).rotate(x, 4),
        Rotary(base=100.0 * 3.0 ** (8 / 6)).rotate(x, 4),
    )
    # The slowest pair is slowed by exactly the factor, the fastest not at all.
    slowed = NTKScaling(3.0).frequencies(8, 100.0, torch.tensor([1]), torch.float64)
    plain = LinearScaling(1.0).frequencies(8, 100.0, torch.tensor([1]), torch.float64)
    torch.testing.assert_close((plain / slowed)[[0, -1]], torch.tensor([1.0, 3.0], dtype=torch.float64))


def test_magnitude_multiplies_the_scores():
    x = torch.randn(1, 2, 3, 8)
    plain, scaled = (Rotary(scaling=YarnScaling(4.0, 4096, m)).rotate(x) for m in (1.0, None))
    torch.testing.assert_close(scaled, plain * (0.1 * math.log(4.0) + 1))


@pytest.mark.parametrize("name", SCALINGS)
def test_copies_and_pickles_are_equal(name):
    rotary = Rotary(scaling=SCALINGS[name][1])
    assert copy.deepcopy(rotary) == rotary == pickle.loads(pickle.dumps(rotary))
    assert hash(copy.deepcopy(rotary)) == hash(rotary)


ZEROS = torch.zeros(2, 3, 4, 6)
MESSAGES = [
    (
        lambda: Rotary(64),
        TypeError,
        "Rotary takes its arguments by name, got 64 without one. Write Rotary() or Rotary(base=...); "
        "the size of the heads is read from queries and keys.",
    ),
    (lambda: Rotary(base="1e4"), ValueError, "base must be a finite number above zero, got '1e4'."),
    (lambda: Rotary(base=0.0), ValueError, "base must be a finite number above zero, got 0.0."),
    (lambda: Rotary(layout="pairs"), ValueError, "layout must be 'half' or 'interleaved', got 'pairs'."),
    (
        lambda: Rotary(rotary_dim=5),
        ValueError,
        "rotary_dim must be even and at least 2, since entries turn in pairs; got 5.",
    ),
    (
        lambda: Rotary(scaling=4.0),
        TypeError,
        "scaling must be a Scaling such as LinearScaling(4), got 4.0.",
    ),
    (
        lambda: Rotary().rotate(torch.zeros(2, 3, 7)),
        ValueError,
        "head_dim must be even, since entries turn in pairs; got 7. Turn all but the last with Rotary(rotary_dim=6).",
    ),
    (
        lambda: Rotary(rotary_dim=8).rotate(ZEROS),
        ValueError,
        "rotary_dim must be at most head_dim; got 8 and 6.",
    ),
    (
        lambda: Rotary().rotate(ZEROS, torch.arange(3)),
        ValueError,
        "positions must be an int, (length,) or (batch, length) for x (2, 3, 4, 6), whose length is 4; got (3,).",
    ),
    (
        lambda: Rotary().rotate(ZEROS, torch.zeros(3, 4, dtype=torch.int64)),
        ValueError,
        "positions must be an int, (length,) or (batch, length) for x (2, 3, 4, 6), whose length is 4; got (3, 4).",
    ),
    (
        lambda: Rotary().rotate(ZEROS, torch.arange(4).half()),
        TypeError,
        "positions must hold integers, got torch.float16. Convert it with positions.long().",
    ),
    (
        lambda: LinearScaling(0.0),
        ValueError,
        "LinearScaling: factor must be a finite number above zero, got 0.0.",
    ),
    (
        lambda: NTKScaling(-1.0),
        ValueError,
        "NTKScaling: factor must be a finite number above zero, got -1.0.",
    ),
    (
        lambda: DynamicNTKScaling(2.0, 0),
        ValueError,
        "DynamicNTKScaling: original_length must be a finite number above zero, got 0.",
    ),
    (
        lambda: Rotary(rotary_dim=2, scaling=NTKScaling(2.0)).rotate(ZEROS),
        ValueError,
        "NTKScaling needs at least two pairs, a slow and a fast one; got 2 turned entries.",
    ),
    (
        lambda: Rotary(scaling=LongRopeScaling((1.0,), (1.0, 2.0), 8)).rotate(ZEROS),
        ValueError,
        "LongRopeScaling: short_factors must hold one number for each of the 3 turned pairs, got 1.",
    ),
    (
        lambda: Llama3Scaling(8.0, 4.0, 4.0, 64),
        ValueError,
        "Llama3Scaling: low_freq_factor must be below high_freq_factor, got 4.0 and 4.0.",
    ),
    (
        lambda: ProportionalScaling(1.5),
        ValueError,
        "ProportionalScaling: share must be a number from 0 to 1, got 1.5.",
    ),
    (
        lambda: Rotary.from_parameters({"rope_type": "spiral"}, 8),
        ValueError,
        "parameters: rope_type must be default, linear, dynamic, yarn, longrope, llama3 or proportional, got 'spiral'.",
    ),
    (
        lambda: Rotary.from_parameters({"rope_type": "llama3", "factor": 8.0}, 8),
        ValueError,
        "parameters: rope_type 'llama3' needs low_freq_factor, got ['factor', 'rope_type'].",
    ),
    (
        lambda: Rotary.from_parameters({"rope_type": "dynamic", "factor": 8.0}, 8),
        ValueError,
        "parameters: rope_type 'dynamic' needs max_length, the configuration's max_position_embeddings, "
        "got ['factor', 'rope_type'].",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), MESSAGES)
def test_bad_input_says_what_to_do(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message
