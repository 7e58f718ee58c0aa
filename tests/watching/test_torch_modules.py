"""Every way in which PyTorch code calls attention: the output keeps its bits, and the weights are those of the call."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as bound_before_the_watch

import heedful
from heedful.watching import watch

B, L, E, H = 3, 7, 32, 4


def dense(query: Tensor, key: Tensor, keep: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Weights in float64."""
    scores = query.double() @ key.double().mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    return torch.softmax(scores, -1)


def heads_of(attention: nn.MultiheadAttention, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Queries and keys of a module, (B, H, L, head_dim), in float64."""
    weight, bias = attention.in_proj_weight.double(), attention.in_proj_bias.double()
    query = F.linear(x.double(), weight[:E], bias[:E])
    key = F.linear((x if y is None else y).double(), weight[E : 2 * E], bias[E : 2 * E])
    return tuple(each.unflatten(-1, (H, -1)).transpose(1, 2) for each in (query, key))


def assert_weights(weights: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(weights.double(), expected, atol=1e-6, rtol=1e-5)


class Block(nn.Module):
    """Attention as nanoGPT writes it."""

    def __init__(
        self, call=lambda *args, **kwargs: F.scaled_dot_product_attention(*args, **kwargs), **options
    ):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(E, 3 * E), nn.Linear(E, E)
        self.call, self.options = call, options

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.view(*x.shape[:-1], H, E // H).transpose(-3, -2) for part in self.c_attn(x).chunk(3, -1)
        )
        self.query, self.key = query, key
        return self.c_proj(self.call(query, key, value, **self.options).transpose(-3, -2).flatten(-2))


class Model(nn.Module):
    def __init__(self, *blocks: nn.Module):
        super().__init__()
        self.h = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.h:
            x = x + block(x)
        return x


@pytest.mark.parametrize("grad", [False, True])
def test_a_plain_model(grad: bool) -> None:
    model, x = Model(Block(is_causal=True), Block(is_causal=True)), torch.randn(B, L, E)
    with torch.set_grad_enabled(grad):
        plain = model(x)
        with watch(model) as seen:
            watched = model(x)
    assert torch.equal(plain, watched)
    assert list(seen) == ["h.0", "h.1"]
    for i, block in enumerate(model.h):
        expected = dense(block.query, block.key, torch.ones(L, L, dtype=torch.bool).tril())
        assert_weights(seen.layers[i].full(), expected)
        assert seen.layers[i].full().requires_grad == grad


def test_gradients_of_an_answer_reach_the_parameters() -> None:
    model, x = Model(Block()), torch.randn(B, L, E)
    with watch(model, heedful.Entropy()) as seen:
        model(x)
    seen["h.0"].entropy().sum().backward()
    block = model.h[0]
    found = block.c_attn.weight.grad.clone()
    block.c_attn.weight.grad = None
    block(x)
    torch.special.entr(dense(block.query, block.key)).sum().backward()
    torch.testing.assert_close(found, block.c_attn.weight.grad, atol=1e-5, rtol=1e-4)


MASKS = {
    "bool": torch.rand(L, L, generator=torch.Generator().manual_seed(0)) > 0.4,
    "bool per item": torch.rand(B, 1, L, L, generator=torch.Generator().manual_seed(1)) > 0.4,
    "float": torch.randn(L, L, generator=torch.Generator().manual_seed(2)),
    "float per head": torch.randn(H, L, L, generator=torch.Generator().manual_seed(3)),
}


@pytest.mark.parametrize("mask", MASKS)
def test_masks_of_torch(mask: str) -> None:
    given = MASKS[mask] | torch.eye(L, dtype=torch.bool) if "bool" in mask else MASKS[mask]
    model, x = Model(Block(attn_mask=given)), torch.randn(B, L, E)
    with torch.no_grad(), watch(model) as seen:
        model(x)
    block = model.h[0]
    scores = block.query.double() @ block.key.double().mT * (E // H) ** -0.5
    scores = scores.masked_fill(~given, -torch.inf) if "bool" in mask else scores + given
    assert_weights(seen["h.0"].full(), torch.softmax(scores, -1))


def test_a_mask_and_the_causal_flag_hold_together() -> None:
    keep = MASKS["bool"] | torch.eye(L, dtype=torch.bool)
    model, x = Model(Block(attn_mask=keep, is_causal=True)), torch.randn(B, L, E)
    with torch.no_grad(), watch(model) as seen:
        model(x)
    block = model.h[0]
    expected = dense(block.query, block.key, keep & torch.ones(L, L, dtype=torch.bool).tril())
    assert_weights(seen["h.0"].full(), expected)


def test_five_dimensions_and_scale() -> None:
    model, x = Model(Block(scale=0.3)), torch.randn(2, B, L, E)
    with torch.no_grad(), watch(model) as seen:
        model(x)
    assert seen["h.0"].shape == (2, B, H, L, L)
    assert_weights(seen["h.0"].full(), dense(model.h[0].query, model.h[0].key, scale=0.3))


def grouped(query: Tensor, key: Tensor, value: Tensor, **options) -> Tensor:
    return F.scaled_dot_product_attention(query, key[:, :2], value[:, :2], enable_gqa=True, **options)


def shared_key(query: Tensor, key: Tensor, value: Tensor, **options) -> Tensor:
    return F.scaled_dot_product_attention(query, key[:1, :1], value[:1, :1], **options)


def narrow_values(query: Tensor, key: Tensor, value: Tensor, **options) -> Tensor:
    """Torch has no fused kernel for this on a CPU; the calls below are its composed operators."""
    return F.scaled_dot_product_attention(query, key, value[..., :5].repeat(1, 1, 1, 2)[..., :8], **options)


@pytest.mark.parametrize("call", [grouped, shared_key, narrow_values])
def test_other_shapes_of_keys(call) -> None:
    model, x = Model(Block(call)), torch.randn(B, L, E)
    with torch.no_grad():
        plain = model(x)
        with watch(model) as seen:
            assert torch.equal(plain, model(x))
    block = model.h[0]
    key = {
        grouped: block.key[:, :2].repeat_interleave(2, 1),
        shared_key: block.key[:1, :1].expand(B, H, L, E // H),
        narrow_values: block.key,
    }[call]
    assert_weights(seen["h.0"].full(), dense(block.query, key))
    assert seen["h.0"].received(per="kv_head").shape == (B, 2 if call is grouped else H, L)


def test_dropout_of_a_model_in_training() -> None:
    """The same numbers are drawn, so the output is the same; the weights are those before dropout."""
    model, x = Model(Block(dropout_p=0.5)), torch.randn(B, L, E)
    torch.manual_seed(5)
    plain = model(x)
    torch.manual_seed(5)
    with watch(model, heedful.Entropy()) as seen, watch(model) as all_seen:
        assert torch.equal(plain, model(x))
    expected = dense(model.h[0].query, model.h[0].key)
    assert_weights(all_seen["h.0"].full(), expected)
    assert_weights(seen["h.0"].entropy(), torch.special.entr(expected).sum(-1))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_function_that_was_imported_by_name(mode) -> None:
    """`from torch.nn.functional import ...` escapes the replaced function, but not the operators below it."""
    model, x = Model(Block(bound_before_the_watch, is_causal=True)), torch.randn(B, L, E)
    with mode():
        plain = model(x)
        with watch(model) as seen:
            assert torch.equal(plain, model(x))
    block = model.h[0]
    expected = dense(block.query, block.key, torch.ones(L, L, dtype=torch.bool).tril())
    assert_weights(seen["h.0"].full(), expected)


def test_inference_mode() -> None:
    model, x = Model(Block(is_causal=True)), torch.randn(B, L, E)
    with torch.inference_mode():
        plain = model(x)
        with watch(model) as seen:
            assert torch.equal(plain, model(x))
        model.h[0].key.zero_()
    assert (seen["h.0"].topk(1).values < 1).any(), "the watch has its own copy"


def test_autocast() -> None:
    model, x = Model(Block()), torch.randn(B, L, E)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        plain = model(x)
        with watch(model) as seen:
            assert torch.equal(plain, model(x))
    query, key = model.h[0].query, model.h[0].key
    assert query.dtype == torch.bfloat16
    assert_weights(seen["h.0"].full(), dense(query, key))


# nn.MultiheadAttention


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("path", ["fast", "grad", "cross"])
def test_multihead_attention(path: str, need_weights: bool) -> None:
    model = nn.MultiheadAttention(E, H, batch_first=True).eval()
    x, y = torch.randn(B, L, E), torch.randn(B, 5, E)
    others = (y, y) if path == "cross" else (x, x)
    with torch.set_grad_enabled(path == "grad"):
        plain = model(x, *others, need_weights=need_weights)
        with watch(model) as seen:
            watched = model(x, *others, need_weights=need_weights)
    assert torch.equal(plain[0], watched[0])
    assert (plain[1] is None) == (watched[1] is None) == (not need_weights)
    assert_weights(seen[""].full(), dense(*heads_of(model, x, y if path == "cross" else None)))
    assert len(seen[""]) == 1
    if need_weights:
        assert torch.equal(plain[1], watched[1])
        torch.testing.assert_close(seen[""].full().mean(1), watched[1], atol=1e-6, rtol=1e-5)


def test_multihead_attention_in_training_draws_the_same_numbers() -> None:
    model, x = nn.MultiheadAttention(E, H, dropout=0.5, batch_first=True), torch.randn(B, L, E)
    torch.manual_seed(3)
    plain, _ = model(x, x, x)
    after = torch.rand(1)
    torch.manual_seed(3)
    with watch(model) as seen:
        watched, _ = model(x, x, x)
    assert torch.equal(plain, watched)
    assert torch.equal(torch.rand(1), after)
    assert_weights(seen[""].full(), dense(*heads_of(model, x)))


def test_multihead_attention_of_one_sequence() -> None:
    model, x = nn.MultiheadAttention(E, H), torch.randn(L, E)
    plain = model(x, x, x)
    with watch(model) as seen:
        watched = model(x, x, x)
    assert torch.equal(plain[0], watched[0])
    assert_weights(seen[""].full(), dense(*heads_of(model, x[None])))


# nn.TransformerEncoder


def encoder(**options) -> nn.TransformerEncoder:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are not possible with norm_first
        return nn.TransformerEncoder(
            nn.TransformerEncoderLayer(E, H, 48, batch_first=True, **options), 2
        ).eval()


def encoder_queries_and_keys(
    model: nn.TransformerEncoder, x: Tensor, **masks: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Queries and keys of each layer, by the slow path, which gradients switch on."""
    found = []
    for layer in model.layers:
        inside = layer.norm1(x) if layer.norm_first else x
        found.append(heads_of(layer.self_attn, inside))
        x = layer(x, **masks)
    return found


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masked", ["no", "padding", "causal"])
def test_transformer_encoder_on_its_fast_path(norm_first: bool, masked: str) -> None:
    model, x = encoder(norm_first=norm_first), torch.randn(B, L, E)
    blocked = torch.arange(L) >= torch.tensor([[L], [5], [3]])
    causal = nn.Transformer.generate_square_subsequent_mask(L)
    given = {"no": {}, "padding": {"src_key_padding_mask": blocked}, "causal": {"mask": causal}}[masked]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch says that nested tensors are a prototype
        plain = model(x, **given)
        with watch(model) as seen:
            assert torch.equal(plain, model(x, **given))
    assert list(seen) == ["layers.0.self_attn", "layers.1.self_attn"]
    per_layer = {"no": {}, "padding": given, "causal": {"src_mask": causal}}[masked]
    keep = {"no": None, "padding": ~blocked[:, None, None], "causal": causal == 0}[masked]
    real = ~blocked if masked == "padding" else torch.ones(B, L, dtype=torch.bool)
    for layer, (query, key) in zip(seen.layers, encoder_queries_and_keys(model, x, **per_layer), strict=True):
        found, expected = layer.full().transpose(1, 2), dense(query, key, keep).transpose(1, 2)
        assert_weights(found[real], expected[real])


def test_transformer_encoder_on_its_slow_path() -> None:
    model, x = encoder(), torch.randn(B, L, E)
    plain = model(x)
    with watch(model) as seen:
        assert torch.equal(plain, model(x))
    for layer, (query, key) in zip(seen.layers, encoder_queries_and_keys(model, x), strict=True):
        assert_weights(layer.full(), dense(query, key))


def test_transformer_decoder_looks_at_itself_and_across() -> None:
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(E, H, 48, batch_first=True), 2).eval()
    x, memory = torch.randn(B, L, E), torch.randn(B, 5, E)
    with torch.no_grad():
        plain = model(x, memory)
        with watch(model) as seen:
            assert torch.equal(plain, model(x, memory))
    assert list(seen) == [f"layers.{i}.{kind}" for i in (0, 1) for kind in ("self_attn", "multihead_attn")]
    assert [tuple(calls.shape) for calls in seen.layers] == [(B, H, L, L), (B, H, L, 5)] * 2
    query, key = heads_of(model.layers[0].self_attn, x)
    assert_weights(seen.layers[0].full(), dense(query, key))


# heedful's own


@pytest.mark.parametrize("reductions", [(), (heedful.Entropy(), heedful.TopK(3))])
def test_a_model_of_heedful_modules(reductions) -> None:
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = heedful.MultiHeadAttention(E, H, num_kv_heads=2, sinks=True, softcap=5.0)

        def forward(self, x: Tensor) -> Tensor:
            self.output, self.weights = self.attention(x, mask=heedful.masks.causal(), reduce=heedful.Mass())
            return self.output

    model, x = Model(Layer(), Layer()), torch.randn(B, L, E)
    with torch.no_grad():
        plain = model(x)
        with watch(model, *reductions) as seen:
            assert torch.equal(plain, model(x))
    assert list(seen) == ["h.0.attention", "h.1.attention"]
    for calls, layer in zip(seen.layers, model.h, strict=True):
        assert torch.equal(calls.entropy(), layer.weights.entropy())
        assert torch.equal(calls.topk(2).values, layer.weights.topk(3).values[..., :2])


def test_a_shared_layer_has_its_calls_in_order() -> None:
    block = Block(is_causal=True)
    model, x = Model(block, block, block), torch.randn(B, L, E)
    with torch.no_grad(), watch(model) as seen:
        model(x)
    assert list(seen) == ["h.0"]
    assert len(seen["h.0"]) == 3
    assert_weights(
        seen["h.0"][2].full(), dense(block.query, block.key, torch.ones(L, L, dtype=torch.bool).tril())
    )


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_model_runs_uncompiled_inside_the_block(fullgraph: bool) -> None:
    model, x = Model(Block(is_causal=True)), torch.randn(B, L, E)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=fullgraph)
    with torch.no_grad():
        before = compiled(x)
        with watch(compiled) as seen:
            inside = compiled(x)
        assert torch.equal(compiled(x), before)
        assert torch.equal(inside, model(x))
    block = model.h[0]
    expected = dense(block.query, block.key, torch.ones(L, L, dtype=torch.bool).tril())
    assert_weights(seen["h.0"].full(), expected)


def test_flex_attention_is_named() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    model, x = Model(Block(flex_attention)), torch.randn(B, L, E)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # flex_attention advises to compile it
        with pytest.raises(RuntimeError) as caught, watch(model):
            model(x)
    assert str(caught.value) == (
        "watch() could not see the attention of 1 module of Model: 'h.0'. Of Block: it runs flex_attention, which is "
        "not part of PyTorch's attention. Let it call F.scaled_dot_product_attention or "
        "heedful.scaled_dot_product_attention instead, which both can be watched."
    )


def test_uniform_attention_has_the_entropy_of_a_uniform_row() -> None:
    model, x = Model(Block(lambda q, k, v: F.scaled_dot_product_attention(q * 0, k, v))), torch.randn(B, L, E)
    with watch(model, heedful.Entropy()) as seen:
        model(x)
    torch.testing.assert_close(seen["h.0"].entropy(), torch.full((B, H, L), math.log(L)))
