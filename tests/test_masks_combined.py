"""Combining masks: `&`, `|` and `~` are what combines, and everything else says so."""

import operator

import pytest
import torch

from heedful import masks

COMBINED = masks.causal() & masks.window(2) | ~masks.prefix(1)
TRUTH = (
    "A mask is neither true nor false. Combine masks with &, | and ~ instead of and, or and not; "
    "to ask whether there is one, write `mask is not None`."
)


@pytest.mark.parametrize("mask", [masks.causal(), masks.dense(torch.ones(2, 2) == 1), COMBINED], ids=repr)
@pytest.mark.parametrize(
    "ask",
    [bool, operator.not_, lambda mask: mask and masks.window(2), lambda mask: mask or masks.window(2)],
    ids=["bool", "not", "and", "or"],
)
def test_a_mask_is_neither_true_nor_false(mask, ask) -> None:
    with pytest.raises(TypeError) as raised:
        ask(mask)
    assert str(raised.value) == TRUTH


@pytest.mark.parametrize(
    ("other", "shown"),
    [(1, "int 1"), (None, "NoneType"), ([True], "list [True]"), (masks.causal, "function <function")],
)
def test_what_is_no_mask_is_named(other, shown) -> None:
    for combine in (operator.and_, operator.or_):
        for pair in ((masks.causal(), other), (other, masks.causal())):
            with pytest.raises(TypeError) as raised:
                combine(*pair)
            message = str(raised.value)
            assert message.startswith(f"A mask combines with masks and with bool tensors, got {shown}")
            assert "masks.causal()" in message
