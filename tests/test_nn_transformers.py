"""The module with the weights of attention layers from transformers gives what they give."""

import pytest
import torch

from heedful import masks
from heedful.nn import KVCache, MultiHeadAttention
from heedful.positions import RelativeBias, Rotary

pytest.importorskip("transformers")

B, L, E = 2, 9, 24
NAMES = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "out_proj"}


def rotary_layer(model, **options):
    """One attention layer of a model with rotary positions, in eval mode, and what turns its queries and keys."""
    module = __import__(f"transformers.models.{model}.modeling_{model}", fromlist=["x"])
    prefix = {"llama": "Llama", "qwen3": "Qwen3", "qwen2": "Qwen2"}[model]
    config = getattr(__import__("transformers"), f"{prefix}Config")(
        hidden_size=E,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=32,
        attn_implementation="eager",
        **options,
    )
    layer = getattr(module, f"{prefix}Attention")(config, layer_idx=0).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return layer, getattr(module, f"{prefix}RotaryEmbedding")(config), config


def renamed(state_dict):
    return {
        ".".join(NAMES.get(part, part) for part in name.split(".")): tensor
        for name, tensor in state_dict.items()
    }


@pytest.mark.parametrize(
    ("model", "rope", "qk_norm", "bias"),
    [
        ("llama", {"rope_type": "default", "rope_theta": 10000.0}, False, False),
        (
            "llama",
            {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
            False,
            False,
        ),
        (
            "qwen2",
            {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 8},
            False,
            True,
        ),
        ("qwen3", {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0}, True, False),
    ],
)
def test_rotary_layers(model, rope, qk_norm, bias):
    """Grouped heads share neighbors (onnx PR#7274), norms come before the turn, angles follow the model's rule."""
    theirs, turn, config = rotary_layer(model, rope_parameters=rope)
    position = Rotary.from_parameters(config.rope_parameters, 8, max_length=config.max_position_embeddings)
    ours = MultiHeadAttention(E, 6, num_kv_heads=2, head_dim=8, position=position, qk_norm=qk_norm, bias=bias)
    missing = ours.load_state_dict(renamed(theirs.state_dict()), strict=False)
    assert missing.unexpected_keys == []
    assert missing.missing_keys == (["out_proj.bias"] if bias else [])
    x = torch.randn(B, L, E)
    later = torch.full((L, L), -torch.inf).triu(1)[None, None]
    expected, expected_weights = theirs(x, turn(x, torch.arange(L)[None]), later)
    output, weights = ours(x, mask=masks.causal())
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights.full(), expected_weights)
    cache = KVCache(max_length=L)
    pieces = [ours(part, mask=masks.causal(), cache=cache).output for part in x.split([4, 4, 1], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected)


@pytest.mark.parametrize("decoder", [False, True])
def test_t5_layers(decoder):
    """Relative buckets, no scale, heads of another size than embed_dim / num_heads."""
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(
        d_model=E, d_kv=5, num_heads=4, relative_attention_max_distance=6, relative_attention_num_buckets=8
    )
    config.is_decoder = decoder
    config._attn_implementation = "eager"
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    bias = RelativeBias(4, num_buckets=8, max_distance=6, bidirectional=not decoder)
    ours = MultiHeadAttention(E, 4, head_dim=5, bias=False, scale=1.0, position=bias)
    names = {
        "q": "q_proj",
        "k": "k_proj",
        "v": "v_proj",
        "o": "out_proj",
        "relative_attention_bias": "position",
    }
    given = {
        ".".join(names.get(part, part) for part in k.split(".")): v for k, v in theirs.state_dict().items()
    }
    ours.load_state_dict(given)
    x = torch.randn(B, L, E)
    keep = masks.causal() if decoder else None
    additive = torch.zeros(B, 1, L, L)
    if decoder:
        additive = additive.masked_fill(torch.ones(L, L).triu(1).bool(), -torch.inf)
    expected = theirs(x, mask=additive)[0]
    torch.testing.assert_close(ours(x, mask=keep).output, expected)
