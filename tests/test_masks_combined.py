"""Combining masks: `&`, `|` and `~` are what combines, and everything else says so."""

import operator

import pytest
import torch

from cases import attend
from heedful import masks
from heedful.backends import NAMES

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


@pytest.mark.parametrize("backend", NAMES)
def test_a_prefix_longer_than_the_keys_so_far_shows_all(backend: str) -> None:
    query, key, value = (torch.randn(2, 3, n, 4) for n in (2, 3, 3))
    everybody = attend(query, key, value, backend=backend).output
    assert torch.equal(attend(query, key, value, masks.prefix(4), backend=backend).output, everybody)
    sink_and_window = masks.causal() & (masks.window(1) | masks.prefix(4))
    found = attend(query, key, value, sink_and_window, backend=backend).output
    torch.testing.assert_close(found, attend(query, key, value, masks.causal(), backend="reference").output)
