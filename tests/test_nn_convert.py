"""From and to nn.MultiheadAttention, and weights under other names."""

import copy
import io

import pytest
import torch
from torch import nn

from heedful import masks
from heedful.nn import KVCache, MultiHeadAttention
from heedful.positions import Rotary

B, L, S, E, H = 2, 5, 7, 12, 3
LAYOUTS = {
    "plain": {},
    "no-bias": {"bias": False},
    "widths": {"kdim": 8, "vdim": 5},
    "widths-no-bias": {"kdim": 8, "vdim": 5, "bias": False},
    "only-vdim": {"vdim": 5},
    "dropout": {"dropout": 0.3},
}


def torchs(**options):
    module = nn.MultiheadAttention(E, H, dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return module.eval()


def inputs(module, batch_first=True):
    sizes = ((L, E), (S, module.kdim), (S, module.vdim))
    tensors = [torch.randn(B, length, size, dtype=torch.float64) for length, size in sizes]
    return tensors, tensors if batch_first else [tensor.transpose(0, 1) for tensor in tensors]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_from_torch_computes_the_same(name, batch_first):
    module = torchs(batch_first=batch_first, **LAYOUTS[name])
    ours_in, theirs_in = inputs(module, batch_first)
    keep = torch.rand(B, H, L, S) < 0.6
    keep[..., 0] = True
    expected, expected_weights = module(*theirs_in, attn_mask=~keep.flatten(0, 1), average_attn_weights=False)
    ours = MultiHeadAttention.from_torch(module)
    output, weights = ours(*ours_in, keep)
    torch.testing.assert_close(output, expected if batch_first else expected.transpose(0, 1))
    torch.testing.assert_close(weights.full(), expected_weights)
    assert ours.dropout == module.dropout


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_both_ways_give_the_same_module_back(name, batch_first):
    module = torchs(batch_first=batch_first, **LAYOUTS[name])
    back = MultiHeadAttention.from_torch(module).to_torch(batch_first=batch_first)
    assert {k: v for k, v in vars(back).items() if not k.startswith("_")} == {
        k: v for k, v in vars(module).items() if not k.startswith("_")
    }
    torch.testing.assert_close(back.state_dict(), module.state_dict(), rtol=0, atol=0)
    _, theirs_in = inputs(module, batch_first)
    torch.testing.assert_close(back(*theirs_in), module(*theirs_in), rtol=0, atol=0)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_other_way_round_too(name):
    ours = MultiHeadAttention(E, H, **LAYOUTS[name])
    back = MultiHeadAttention.from_torch(ours.to_torch())
    torch.testing.assert_close(dict(back.state_dict()), dict(ours.state_dict()), rtol=0, atol=0)
    assert back.dropout == ours.dropout


def test_padding_and_causal_masks_mean_the_same():
    module = torchs(batch_first=True)
    x = torch.randn(B, L, E, dtype=torch.float64)
    real = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    later = torch.ones(L, L, dtype=torch.bool).triu(1)
    expected, _ = module(x, x, x, key_padding_mask=~real, attn_mask=later)
    output, _ = MultiHeadAttention.from_torch(module)(x, mask=masks.causal() & masks.padding(real))
    torch.testing.assert_close(output, expected)


def test_weights_are_copied_with_mode_and_frozen_parameters():
    module = torchs(batch_first=True).train()
    module.in_proj_weight.requires_grad_(False)
    ours = MultiHeadAttention.from_torch(module)
    assert ours.training
    frozen = {name for name, parameter in ours.named_parameters() if not parameter.requires_grad}
    assert frozen == {"q_proj.weight", "k_proj.weight", "v_proj.weight"}
    assert not ours.to_torch().in_proj_weight.requires_grad
    assert ours.to_torch().out_proj.weight.requires_grad
    with torch.no_grad():
        ours.q_proj.weight.zero_()
    assert module.in_proj_weight[:E].abs().min() > 0
    assert not MultiHeadAttention.from_torch(module.eval()).training


def test_dtype_and_device_follow():
    module = nn.MultiheadAttention(E, H, device="meta", dtype=torch.float16)
    ours = MultiHeadAttention.from_torch(module)
    assert {(p.device.type, p.dtype) for p in ours.parameters()} == {("meta", torch.float16)}
    assert {(p.device.type, p.dtype) for p in ours.to_torch().parameters()} == {("meta", torch.float16)}


@pytest.mark.parametrize("name", ["plain", "no-bias", "widths"])
def test_a_checkpoint_of_torchs_module_loads(name):
    """Inside a larger model too, and through a file."""
    theirs = nn.Sequential(nn.Linear(3, 3), torchs(batch_first=True, **LAYOUTS[name]))
    ours = nn.Sequential(nn.Linear(3, 3), MultiHeadAttention(E, H, dtype=torch.float64, **LAYOUTS[name]))
    file = io.BytesIO()
    torch.save(theirs.state_dict(), file)
    file.seek(0)
    ours.load_state_dict(torch.load(file))
    ours_in, theirs_in = inputs(theirs[1])
    torch.testing.assert_close(ours[1](*ours_in).output, theirs[1](*theirs_in)[0])
    loaded = copy.deepcopy(ours.state_dict())
    ours.load_state_dict(loaded)
    torch.testing.assert_close(dict(ours.state_dict()), dict(loaded), rtol=0, atol=0)


def test_a_checkpoint_that_lacks_a_part_is_refused():
    given = torchs(batch_first=True).state_dict()
    del given["in_proj_bias"]
    with pytest.raises(RuntimeError) as caught:
        MultiHeadAttention(E, H).load_state_dict(given)
    assert str(caught.value) == (
        "Error(s) in loading state_dict for MultiHeadAttention:\n"
        '\tMissing key(s) in state_dict: "q_proj.bias", "k_proj.bias", "v_proj.bias". '
    )


MESSAGES = [
    (
        lambda: MultiHeadAttention.from_torch(nn.Linear(3, 3)),
        TypeError,
        "module must be an nn.MultiheadAttention, got Linear.",
    ),
    (
        lambda: MultiHeadAttention.from_torch(nn.MultiheadAttention(E, H, add_bias_kv=True)),
        NotImplementedError,
        "module has add_bias_kv=True: a learned key and value after the others, which heedful does not have. "
        "A heedful.KVCache that holds them, split into heads, gives the same output when it is passed as cache=.",
    ),
    (
        lambda: MultiHeadAttention.from_torch(nn.MultiheadAttention(E, H, add_zero_attn=True)),
        NotImplementedError,
        "module has add_zero_attn=True: a key and value of zeros after the others, which heedful does not have. "
        "A MultiHeadAttention(sinks=True) with sinks of 0 gives the same output.",
    ),
    (
        lambda: MultiHeadAttention(E, 4, num_kv_heads=2, position=Rotary(), head_dim=4).to_torch(),
        NotImplementedError,
        "nn.MultiheadAttention has no position, no num_kv_heads, no head_dim; this module uses them. "
        "Only a module without them can be converted.",
    ),
    (
        lambda: MultiHeadAttention(E, H, qk_norm=True, softcap=2.0, sinks=True, scale=1.0).to_torch(),
        NotImplementedError,
        "nn.MultiheadAttention has no qk_norm, no scale, no softcap, no sinks; this module uses them. "
        "Only a module without them can be converted.",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), MESSAGES)
def test_what_cannot_be_converted_is_refused(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_a_cache_holds_the_learned_key_and_value():
    """What the message about add_bias_kv promises."""
    module = nn.MultiheadAttention(E, H, add_bias_kv=True, batch_first=True)
    ours, given = MultiHeadAttention(E, H), module.state_dict()
    pair = [given.pop(name).view(1, H, 1, E // H).expand(B, -1, -1, -1) for name in ("bias_k", "bias_v")]
    ours.load_state_dict(given)
    cache = KVCache()
    cache.update(*pair)
    x = torch.randn(B, L, E)
    expected, weights = module(x, x, x, average_attn_weights=False)
    output, found = ours(x, cache=cache)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(found.full().roll(-1, -1), weights)  # torch has it last, a cache first


def test_zeros_appended_are_a_sink_of_zero():
    """What the message about add_zero_attn promises."""
    module = nn.MultiheadAttention(E, H, add_zero_attn=True, batch_first=True)
    ours = MultiHeadAttention(E, H, sinks=True)
    ours.load_state_dict({**module.state_dict(), "sinks": torch.zeros(H)})
    x = torch.randn(B, L, E)
    expected, weights = module(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(ours(x).output, expected)
    torch.testing.assert_close(ours(x).weights.full(), weights[..., :-1])
