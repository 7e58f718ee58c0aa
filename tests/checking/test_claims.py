"""What a target says about itself is read from docstrings and names, and nothing is read into them."""

import pytest
from torch import nn
from torch.nn import functional

from heedful.checking.claims import another_kind, layout_of, polarity, read


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ('In the mask, True means "may attend".', "keep"),
        ("mask: bool, True = keep", "keep"),
        ("mask: True where a pair is blocked", "block"),
        ("mask: 1 for tokens that are not masked, 0 for tokens that are masked", "keep"),
        ("mask: pairs with mask == 0 are blocked", "keep"),
        ("mask: True values are positions that should be masked with float('-inf')", "block"),
        ("key_padding_mask: if True, the corresponding key is ignored", "block"),
        ("mask: False where attention is not allowed", "keep"),
        ("mask (0s are padding)", "keep"),
        ("attention_mask: 0 at padded positions", "keep"),
        ("mask: True: not allowed to attend", "block"),
        ("mask: True means unmasked", "keep"),
        ("the mask is added to the scores", "add"),
        ("mask: optional tensor", None),
        ("mask: shape (B, 1, L, S)", None),
        ("is_causal: True blocks the future", None),
        ("mask: a tensor. need_weights: if True, weights can be seen", None),
    ],
)
def test_polarity(text: str, meaning: str | None) -> None:
    claim = polarity([("its docstring", text)])
    assert (claim and claim.what) == meaning


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("Q: (batch, seq_len_q, d_k)", "bld"),
        ("query: (B, H, L, D)", "bhld"),
        ("q of shape (batch, seq, n_heads, head_dim)", "blhd"),
        ("key: (B, H, L, D)", None),
        ("x: (..., L, D)", None),
        ("query: a tensor (see below)", None),
    ],
)
def test_layout(text: str, layout: str | None) -> None:
    claim = layout_of([("its docstring", text)])
    assert (claim and claim.what) == layout


def test_torchs_docstrings() -> None:
    found = read(functional.scaled_dot_product_attention, {"mask": "attn_mask"})
    assert found.mask == ("keep", "its docstring")
    module = read(nn.MultiheadAttention, {"mask": "attn_mask", "padding": "key_padding_mask"})
    assert (module.mask, module.causal) == (None, None)


def test_a_parameters_name_is_a_claim() -> None:
    def attention(q, k, v, keep_mask=None):
        """Attend."""

    assert read(attention, {"mask": "keep_mask"}).mask == ("keep", "the parameter name 'keep_mask'")


def test_a_function_with_a_mask_is_not_causal_by_its_name() -> None:
    def causal_attention(q, k, v, mask):
        """Attend."""

    assert read(causal_attention, {"mask": "mask"}).causal is None
    assert read(causal_attention, {}).causal == ("causal", "the name causal_attention")


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("linear_attn", "", "linear attention"),
        ("LinearAttention", "", "linear attention"),
        ("attention", "Sigmoid attention.", "sigmoid attention"),
        ("attention", "Attention with an elu + 1 feature map.", "linear attention"),
        ("attention", "Unlike linear attention, this is quadratic.", None),
        ("attention", "A linear layer, then attention.", None),
        ("cosine_similarity", "", None),
        ("multi_head_attention", "Normalizes its input.", None),
    ],
)
def test_another_kind_of_attention(name: str, text: str, what: str | None) -> None:
    claim = another_kind(name, [("its docstring", text)])
    assert (claim and claim.what) == what
