"""Masks of other libraries give what they give there."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from heedful import MultiHeadAttention, masks, scaled_dot_product_attention

B, H, L, S, E = 2, 3, 4, 6, 12


def hidden(*shape: int) -> Tensor:
    """A bool mask of torch's kind that leaves each row its first key."""
    mask = torch.rand(shape) < 0.5
    mask[..., 0] = False
    return mask


def added(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(mask, -torch.inf)


MASKS: dict[str, dict[str, Callable[[], Tensor]]] = {
    "attn_mask": {"attn_mask": lambda: hidden(L, S)},
    "attn_mask, float": {"attn_mask": lambda: added(hidden(L, S))},
    "attn_mask per head": {"attn_mask": lambda: hidden(B * H, L, S)},
    "key_padding_mask": {"key_padding_mask": lambda: hidden(B, S)},
    "key_padding_mask, float": {"key_padding_mask": lambda: added(hidden(B, S))},
    "both": {"attn_mask": lambda: hidden(L, S), "key_padding_mask": lambda: hidden(B, S)},
    "both, per head": {"attn_mask": lambda: hidden(B * H, L, S), "key_padding_mask": lambda: hidden(B, S)},
}


@pytest.mark.parametrize("name", MASKS)
def test_from_torch_hides_what_torch_hides(name: str) -> None:
    """pytorch PR#170415 and many others: True keeps in one function of torch and hides in another."""
    given = {argument: make() for argument, make in MASKS[name].items()}
    module = nn.MultiheadAttention(E, H, batch_first=True)
    query, key = torch.randn(B, L, E), torch.randn(B, S, E)
    expected, expected_weights = module(query, key, key, **given, average_attn_weights=False)
    mask = masks.from_torch(**given, num_heads=H)
    output, weights = MultiHeadAttention.from_torch(module)(query, key, mask=mask)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights.full(), expected_weights)


def test_from_torch_takes_the_masks_of_a_transformer() -> None:
    later = nn.Transformer.generate_square_subsequent_mask(5)
    assert torch.equal(masks.from_torch(later).to_dense(5, 5)[0, 0], masks.causal().to_dense(5, 5))
    alone = masks.from_torch(key_padding_mask=torch.tensor([False, True, True]))
    assert alone.to_dense(2, 3).flatten(0, 2).tolist() == [[True, False, False]] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_from_additive_takes_what_transformers_makes(dtype: torch.dtype) -> None:
    """A left-padded batch: its first rows see nothing. Added, the mask lets them look all the same; here 0."""
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": E, "num_attention_heads": H, "intermediate_size": 8, "vocab_size": 9}
    model = LlamaModel(LlamaConfig(num_hidden_layers=1, attn_implementation="eager", **sizes)).to(dtype)
    seen = []
    attention = model.layers[0].self_attn
    attention.register_forward_pre_hook(lambda _, args, given: seen.append(given), with_kwargs=True)
    real = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    model(torch.arange(5).expand(B, 5), attention_mask=real)
    made = seen[0]["attention_mask"]
    assert made.shape == (B, 1, 5, 5)
    assert made.min() == torch.finfo(dtype).min
    mask = masks.from_additive(made)
    expected = (masks.causal() & masks.padding(real)).to_dense(5, 5)
    assert torch.equal(mask.to_dense(5, 5), expected)
    x = torch.randn(B, H, 5, 4)
    by_mask, _ = scaled_dot_product_attention(x, x, x, mask)
    by_bias, _ = scaled_dot_product_attention(x, x, x, attn_bias=made.float())
    assert not by_mask[1, :, :2].any()
    assert by_bias[1, :, :2].any()
    torch.testing.assert_close(by_mask[:, :, 2:], by_bias[:, :, 2:])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window_size", [(-1, -1), (2, 0), (0, 0), (1, 2), (-1, 1), (3, -1), (None, 1)])
def test_from_flash_attn_is_its_documented_rule(causal: bool, window_size: tuple) -> None:
    """Query i sees keys from i + S - L - left to i + S - L + right, both included; -1 is no bound."""
    left, right = (None if size in (None, -1) else size for size in window_size)
    right = 0 if causal else right
    at, key = torch.arange(L)[:, None] + S - L, torch.arange(S)
    expected = torch.ones(L, S, dtype=torch.bool)
    if left is not None:
        expected &= key >= at - left
    if right is not None:
        expected &= key <= at + right
    found = masks.from_flash_attn(causal=causal, window_size=window_size).to_dense(L, S)
    assert torch.equal(found, expected)


def test_from_cu_seqlens_keeps_documents_apart() -> None:
    """flash-attention#1537: rows after the last boundary gave NaN gradients. Here they are 0."""
    x = torch.randn(1, 2, 7, 4, requires_grad=True)
    mask = masks.from_cu_seqlens(torch.tensor([0, 2, 2, 5], dtype=torch.int32), 7) & masks.causal()
    output, weights = scaled_dot_product_attention(x, x, x, mask)
    parts = [
        scaled_dot_product_attention(t, t, t, masks.causal()).output for t in x[:, :, :5].split([2, 3], 2)
    ]
    torch.testing.assert_close(output[:, :, :5], torch.cat(parts, 2))
    assert not output[:, :, 5:].any()
    output.sum().backward()
    assert not x.grad[:, :, 5:].any()
    assert weights.sum(-1)[0, 0].round().tolist() == [1, 1, 1, 1, 1, 0, 0]


MESSAGES = {
    "nothing": (
        lambda: masks.from_torch(),
        ValueError,
        "from_torch() needs attn_mask or key_padding_mask; got neither. No mask is mask=None.",
    ),
    "a bias": (
        lambda: masks.from_torch(torch.full((2, 2), 0.5)),
        ValueError,
        "from_torch(): attn_mask has numbers other than 0 and -inf, so it is a bias and not a mask. "
        "Give it as attn_bias.",
    ),
    "an integer mask": (
        lambda: masks.from_torch(key_padding_mask=torch.ones(2, 3, dtype=torch.int64)),
        TypeError,
        "from_torch(): key_padding_mask must be a bool or float tensor, got int64 (2, 3).",
    ),
    "heads unknown": (
        lambda: masks.from_torch(torch.zeros(6, 2, 2, dtype=torch.bool)),
        ValueError,
        "from_torch(): num_heads must divide the first size of attn_mask (6, 2, 2), which is batch * heads; got None.",
    ),
    "four dimensions": (
        lambda: masks.from_torch(torch.zeros(1, 1, 2, 2, dtype=torch.bool)),
        ValueError,
        "from_torch(): attn_mask must be (L, S) or (batch * heads, L, S), got (1, 1, 2, 2).",
    ),
    "padding of three dimensions": (
        lambda: masks.from_torch(key_padding_mask=torch.zeros(1, 2, 2, dtype=torch.bool)),
        ValueError,
        "from_torch(): key_padding_mask must be (batch, S) or (S,), got (1, 2, 2).",
    ),
    "a float mask of ones": (
        lambda: masks.from_additive(torch.ones(2, 2)),
        ValueError,
        "from_additive(): bias has numbers other than 0 and -inf, so it is a bias and not a mask. "
        "Give it as attn_bias.",
    ),
    "a bool mask": (
        lambda: masks.from_additive(torch.ones(2, 2, dtype=torch.bool)),
        TypeError,
        "from_additive(): bias must be a float tensor of zeros and hugely negative numbers, got bool (2, 2). "
        "A bool or 0/1 tensor is a mask as it is.",
    ),
    "three dimensions": (
        lambda: masks.from_additive(torch.zeros(3, 2, 2)),
        ValueError,
        "from_additive(): bias must be (L, S) or (B, H, L, S), got (3, 2, 2). "
        "For one per batch item write bias[:, None].",
    ),
    "a window that is no pair": (
        lambda: masks.from_flash_attn(window_size=4),
        ValueError,
        "from_flash_attn(): window_size must be (left, right), integers of at least 0, or -1 for no bound; got 4.",
    ),
    "a window of -2": (
        lambda: masks.from_flash_attn(window_size=(-2, 0)),
        ValueError,
        "from_flash_attn(): window_size must be (left, right), integers of at least 0, or -1 for no bound; "
        "got (-2, 0).",
    ),
    "lengths for boundaries": (
        lambda: masks.from_cu_seqlens(torch.tensor([3, 2]), 5),
        ValueError,
        "from_cu_seqlens(): cu_seqlens must begin with 0, never go down, and end at 5 at most, got [3, 2].",
    ),
    "boundaries beyond the end": (
        lambda: masks.from_cu_seqlens(torch.tensor([0, 6]), 5),
        ValueError,
        "from_cu_seqlens(): cu_seqlens must begin with 0, never go down, and end at 5 at most, got [0, 6].",
    ),
    "float boundaries": (
        lambda: masks.from_cu_seqlens(torch.tensor([0.0, 2.0]), 5),
        ValueError,
        "from_cu_seqlens(): cu_seqlens must be an integer tensor (documents + 1,), got float32 (2,).",
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_bad_input_says_what_to_do(name: str) -> None:
    call, kind, message = MESSAGES[name]
    with pytest.raises(kind) as raised:
        call()
    assert str(raised.value) == message
