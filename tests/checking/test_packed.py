"""Query, key and value in one tensor: every usual layout is worked out, or told, and mistakes show all the same."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from heedful.checking import check
from heedful.checking.layouts import PACKED, PACKED_ONE_HEAD, pack, words


def parts_of(qkv: Tensor, layout: str, heads: int | None = None, order: str = "qkv") -> list[Tensor]:
    """Query, key and value, (batch, heads, length, size), out of a packed tensor, by einsum alone."""
    whole, _, flat = layout.partition("-")
    if flat:
        sizes = {"3": 3, "h": heads, "d": qkv.size(-1) // (3 * (heads or 1))}
        qkv = qkv.unflatten(-1, [sizes[a] for a in flat])
    axes = (whole + flat).replace("3", "t")
    full = torch.einsum(f"{axes}->{''.join(a for a in 'tbhld' if a in axes)}", qkv)
    parts = dict(zip(order, full, strict=True))
    return [parts[letter] for letter in "qkv"]


def make(
    layout: str, order: str = "qkv", divide: Callable[[int], float] = math.sqrt
) -> Callable[..., Tensor]:
    """Attention over one tensor in this layout."""

    def attend(qkv: Tensor, heads: int | None) -> Tensor:
        q, k, v = parts_of(qkv, layout, heads, order)
        out = (q @ k.mT / divide(q.size(-1))).softmax(-1) @ v
        return out.transpose(1, 2).flatten(2) if heads else out

    def attention(qkv: Tensor) -> Tensor:
        return attend(qkv, None)

    def attention_of_heads(qkv: Tensor, num_heads: int) -> Tensor:
        return attend(qkv, num_heads)

    return attention_of_heads if "-" in layout and "h" in layout else attention


@pytest.mark.parametrize("layout", [*PACKED, *PACKED_ONE_HEAD])
def test_a_layout_is_worked_out(layout: str) -> None:
    found = check(make(layout))
    assert (found.verdict, found.mistakes, found.properties) == ("right", (), ()), str(found)
    assert f"query, key and value in one tensor {words(layout)}" in found.conventions


@pytest.mark.parametrize("layout", [*PACKED, *PACKED_ONE_HEAD])
def test_a_mistake_is_named_in_every_layout(layout: str) -> None:
    found = check(make(layout, divide=float))
    assert [m.name for m in found.mistakes] == ["scale-head-dim"], str(found)


@pytest.mark.parametrize("order", ["kqv", "vkq", "qvk"])
def test_another_order_is_a_convention(order: str) -> None:
    found = check(make("bl3hd", order))
    assert (found.verdict, found.mistakes) == ("right", ())
    spelled = [{"q": "query", "k": "key", "v": "value"}[letter] for letter in order]
    assert any(c.startswith(f"{spelled[0]}, {spelled[1]} and {spelled[2]} in one") for c in found.conventions)


def test_packing_agrees_with_torch() -> None:
    parts = [torch.randn(2, 4, 5, 8) for _ in range(3)]
    for layout in (*PACKED, *PACKED_ONE_HEAD):
        packed = pack(parts, layout)
        assert packed.shape == pack([p.clone() for p in parts], layout).shape
        for got, part in zip(parts_of(packed, layout, 4 if "h" in layout else None), parts, strict=True):
            wanted = part if "h" in layout else part[:, 0]
            assert torch.equal(got, wanted if "b" in layout else wanted[0])


def key_and_value_in_one(q: Tensor, kv: Tensor, causal: bool = False) -> Tensor:
    k, v = (x.transpose(1, 2) for x in kv.unbind(2))
    out = functional.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=causal, enable_gqa=True)
    return out.transpose(1, 2)


def test_key_and_value_in_one_tensor() -> None:
    found = check(key_and_value_in_one)
    assert (found.verdict, found.mistakes, found.hazards) == ("right", (), ()), str(found)
    assert {
        "layout (batch, length, heads, size)",
        "key and value in one tensor (batch, length, 2, heads, size)",
        "causal flag, aligned to the start",
        "grouped heads are neighbors",
    } <= set(found.conventions)


def padded(qkv: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """Padded queries give 0, as flash-attn's functions for padded batches do."""
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    if key_padding_mask is None:
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=key_padding_mask[:, None, None, :])
    return out.transpose(1, 2) * key_padding_mask[:, :, None, None]


def test_padded_queries_are_nobodys_business() -> None:
    found = check(padded)
    assert (found.verdict, found.mistakes) == ("right", ()), str(found)
    assert "padding mask True = may attend" in found.conventions


def nameless(x: Tensor) -> Tensor:
    return make("bl3hd")(x)


def test_a_parameter_whose_name_says_nothing_can_be_told() -> None:
    assert check(nameless).explanation == (
        "I can't tell which parameter is the key, which the value; the parameters are (x). Name them query, key and "
        "value (or q, k, v). If they come in one tensor, name it qkv or say its layout: --layout bl3hd is (batch, "
        "length, 3, heads, size). If it isn't attention, say what it is with --kind (attention, positions, rotary, "
        "mask, cache)."
    )
    assert check(nameless, layout="bl3hd").verdict == "right"


def scales_in_place(qkv: Tensor) -> Tensor:
    qkv[:, :, 0] /= qkv.size(-1) ** 0.5
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2)


def test_a_packed_tensor_is_left_alone() -> None:
    found = check(scales_in_place)
    assert found.verdict == "right"
    assert [h.name for h in found.hazards] == ["inputs-changed"]


@pytest.mark.parametrize("layout", ["bdhl", "bl4hd", "-bl3hd", "bl3hd-", "blh", ""])
def test_a_layout_that_does_not_exist(layout: str) -> None:
    with pytest.raises(ValueError) as caught:
        check(nameless, layout=layout)
    assert str(caught.value) == (
        f"layout is {layout!r}; it must be one of bhld, blhd, bld, ld, ble, lbe, or for a packed tensor something like "
        "bl3hd, 3bhld, b3hld or bl-3hd"
    )
