"""The bold cells of docs/conventions.md, run against the libraries themselves."""

import os

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from heedful import masks, scaled_dot_product_attention

B, H, G, L, S, E = 2, 4, 2, 3, 6, 8
FIRST_AT_FIRST = torch.ones(L, S, dtype=torch.bool).tril()
LAST_AT_LAST = torch.ones(L, S, dtype=torch.bool).tril(S - L)
TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "pad_token_id": 0,
}


@pytest.fixture
def qkv() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(B, H, L, E), torch.randn(B, G, S, E), torch.randn(B, G, S, E)


def by_hand(query: Tensor, key: Tensor, value: Tensor, keep: Tensor) -> Tensor:
    """The formula, with True = may attend and neighboring query heads on one key head."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    logits = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~keep, -torch.inf)
    return logits.softmax(-1) @ value


def same(left: Tensor, right: Tensor) -> bool:
    return torch.allclose(left, right, atol=1e-5)


class TestHeedful:
    def test_causal_aligns_the_end_and_true_may_attend(self, qkv):
        assert same(scaled_dot_product_attention(*qkv, masks.causal()).output, by_hand(*qkv, LAST_AT_LAST))
        assert same(scaled_dot_product_attention(*qkv, FIRST_AT_FIRST).output, by_hand(*qkv, FIRST_AT_FIRST))

    def test_query_start_0_aligns_the_start(self, qkv):
        output, _ = scaled_dot_product_attention(*qkv, masks.causal(), query_start=0)
        assert same(output, by_hand(*qkv, FIRST_AT_FIRST))

    def test_a_window_counts_the_query(self):
        assert masks.window(2).to_dense(4, 4).sum(-1).tolist() == [1, 2, 2, 2]

    def test_a_query_that_sees_nothing_gets_zeros(self, qkv):
        query, key, value = (x.requires_grad_() for x in qkv)
        output, weights = scaled_dot_product_attention(query, key, value, torch.zeros(L, S, dtype=torch.bool))
        output.sum().backward()
        assert not any(x.any() for x in (output, weights.full(), query.grad, key.grad, value.grad))
        assert (weights.logsumexp() == -torch.inf).all()

    def test_weights_are_before_dropout(self, qkv):
        _, dropped = scaled_dot_product_attention(*qkv, dropout_p=0.5)
        _, kept = scaled_dot_product_attention(*qkv)
        assert same(dropped.full(), kept.full())

    def test_softcap_then_bias_then_mask(self, qkv):
        query, key, value = qkv
        bias = torch.randn(L, S)
        key_heads = key.repeat_interleave(H // G, 1)
        logits = 0.7 * torch.tanh(query @ key_heads.mT * E**-0.5 / 0.7) + bias
        expected = logits.masked_fill(~LAST_AT_LAST, -torch.inf).softmax(-1)
        _, weights = scaled_dot_product_attention(
            query, key, value, masks.causal(), attn_bias=bias, softcap=0.7
        )
        assert same(weights.full(), expected)


class TestScaledDotProductAttention:
    def test_true_may_attend_and_neighbors_share_a_key_head(self, qkv):
        theirs = F.scaled_dot_product_attention(*qkv, attn_mask=LAST_AT_LAST, enable_gqa=True)
        assert same(theirs, by_hand(*qkv, LAST_AT_LAST))

    def test_causal_aligns_the_start(self, qkv):
        assert same(
            F.scaled_dot_product_attention(*qkv, is_causal=True, enable_gqa=True),
            by_hand(*qkv, FIRST_AT_FIRST),
        )

    def test_a_query_that_sees_nothing_gets_zeros(self, qkv):
        nothing = torch.zeros(L, S, dtype=torch.bool)
        assert not F.scaled_dot_product_attention(*qkv, attn_mask=nothing, enable_gqa=True).any()


class TestTorchMultiheadAttention:
    @pytest.fixture
    def mha(self) -> torch.nn.MultiheadAttention:
        return torch.nn.MultiheadAttention(E, 2, batch_first=True)

    def test_true_is_hidden(self, mha):
        x = torch.randn(B, S, E)
        _, weights = mha(x, x, x, attn_mask=torch.ones(S, S, dtype=torch.bool).triu(1))
        assert not weights.triu(1).any()

    def test_a_query_that_sees_nothing_depends_on_asking_for_weights(self, mha):
        x, nothing = torch.randn(B, S, E), torch.ones(B, S, dtype=torch.bool)
        assert mha(x, x, x, key_padding_mask=nothing)[0].isnan().all()
        without, _ = mha(x, x, x, key_padding_mask=nothing, need_weights=False)
        assert same(without, mha.out_proj.bias.expand(B, S, E))

    def test_weights_are_after_dropout_and_averaged_over_heads(self, mha):
        mha.dropout = 0.5
        x = torch.randn(B, S, E)
        _, weights = mha(x, x, x)
        assert weights.shape == (B, S, S)
        assert not same(weights.sum(-1), torch.ones(B, S))


class TestKeras:
    @pytest.fixture
    def keras(self):
        os.environ["KERAS_BACKEND"] = "torch"
        import keras

        return keras

    def test_grouped_heads_causal_aligns_the_start(self, keras, qkv):
        theirs = keras.ops.dot_product_attention(*(x.transpose(1, 2) for x in qkv), is_causal=True)
        assert same(torch.as_tensor(theirs).transpose(1, 2), by_hand(*qkv, FIRST_AT_FIRST))

    def test_true_may_attend_and_nothing_gives_zero_weights(self, keras):
        layer, x = keras.layers.MultiHeadAttention(2, 4), torch.randn(B, S, E)
        keep = torch.ones(B, S, S, dtype=torch.bool).tril()
        keep[:, 0] = False
        _, weights = layer(x, x, attention_mask=keep, return_attention_scores=True)
        assert not weights.triu(1).any()
        assert not weights[:, :, 0].any()

    def test_weights_are_before_dropout_per_head(self, keras):
        layer, x = keras.layers.MultiHeadAttention(2, 4, dropout=0.5), torch.randn(B, S, E)
        _, weights = layer(x, x, return_attention_scores=True, training=True)
        assert same(weights.sum(-1), torch.ones(B, 2, S))


class TestOnnx:
    @pytest.fixture
    def attention(self):
        from onnx.reference.ops.op_attention import _compute_attention

        return lambda *args, **kwargs: _compute_attention(
            *args, q_num_heads=None, kv_num_heads=None, **kwargs
        )

    def weights(self, attention, **kwargs) -> np.ndarray:
        x = np.random.default_rng(0).standard_normal((B, H, S, E)).astype(np.float32)
        return attention(x, x, x, qk_matmul_output_mode=3, **kwargs)[3]

    def test_a_window_leaves_out_the_query(self, attention):
        seen = (self.weights(attention, left_window_size=1, right_window_size=0) > 0).sum(-1)
        assert seen[0, 0].tolist() == [1, 2, 2, 2, 2, 2]

    def test_a_query_that_sees_nothing_gets_zeros(self, attention):
        assert not self.weights(attention, attn_mask=np.zeros((S, S), dtype=bool)).any()

    def test_softcap_comes_before_the_mask(self, attention):
        hidden = ~np.tril(np.ones((S, S), dtype=bool))
        mask = np.where(hidden, -np.inf, 0).astype(np.float32)
        assert not self.weights(attention, attn_mask=mask, softcap=1.0)[..., hidden].any()


class TestTransformers:
    def attentions(self, model, **inputs) -> Tensor:
        return model(**inputs, output_attentions=True).attentions[0]

    def test_a_window_counts_the_query(self):
        from transformers import MistralConfig, MistralModel

        model = MistralModel(MistralConfig(sliding_window=3, attn_implementation="eager", **TINY)).eval()
        weights = self.attentions(model, input_ids=torch.arange(1, 8)[None])
        assert (weights[0, 0] > 0).sum(-1).tolist() == [1, 2, 3, 3, 3, 3, 3]

    def test_a_query_that_sees_nothing_averages_in_eager_and_is_zero_in_sdpa(self):
        from transformers import LlamaConfig, LlamaModel

        model = LlamaModel(LlamaConfig(attn_implementation="eager", **TINY)).eval()
        left_padded = {
            "input_ids": torch.arange(1, 6)[None],
            "attention_mask": torch.tensor([[0, 0, 1, 1, 1]]),
        }
        assert same(self.attentions(model, **left_padded)[0, :, 0], torch.full((4, 5), 0.2))

        model.set_attn_implementation("sdpa")
        seen = []
        model.layers[0].self_attn.o_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        model(**left_padded)
        assert not seen[0][0, :2].any()
        assert seen[0][0, 2:].any()

    def test_eager_weights_are_after_dropout(self):
        from transformers import LlamaConfig, LlamaModel

        model = LlamaModel(LlamaConfig(attn_implementation="eager", attention_dropout=0.5, **TINY)).train()
        weights = self.attentions(model, input_ids=torch.arange(1, 8)[None])
        assert not same(weights.sum(-1), torch.ones(1, 4, 7))
