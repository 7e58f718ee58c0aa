"""Masks that the module takes: which shapes, and what they mean."""

import pytest
import torch

from heedful import masks
from heedful.nn import MultiHeadAttention

B, L, S, E, H = 2, 4, 6, 12, 3
QUERY, KEY = torch.randn(B, L, E), torch.randn(B, S, E)


def full(shape, value=None):
    """A mask of this shape, each row with a key, as (B, H, L, S)."""
    keep = torch.rand(shape) < 0.5
    keep[..., 1] = True
    return keep


@pytest.mark.parametrize(
    ("shape", "where"),
    [
        ((L, S), (None, None)),
        ((1, S), (None, None)),
        ((B, S), (slice(None), None, None)),
        ((B, L, S), (slice(None), None)),
        ((1, L, S), (slice(None), None)),
        ((B, 1, S), (slice(None), None)),
        ((B, H, L, S), ()),
        ((B, 1, L, S), ()),
        ((1, H, 1, S), ()),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_every_shape_means_what_it_says(shape, where, dtype):
    keep = full(shape)
    expected = keep[where].expand(B, H, L, S) if where else keep.expand(B, H, L, S)
    _, weights = MultiHeadAttention(E, H)(QUERY, KEY, mask=keep.to(dtype))
    assert ((weights.full() > 0) == expected).all()


def test_patterns_pass_through():
    _, weights = MultiHeadAttention(E, H)(QUERY, KEY, mask=masks.window(2))
    assert ((weights.full() > 0) == masks.window(2).to_dense(L, S)).all()


MESSAGES = [
    (
        torch.ones(3, 3, dtype=torch.bool),
        ValueError,
        "mask is (3, 3) while batch and query length are both 3, so its first size could mean either. "
        "Write mask[:, None, None] for one row of keys per batch item, or mask[None, None] for one per query.",
    ),
    (
        torch.ones(2, 3, 3, dtype=torch.bool),
        ValueError,
        "mask must be (L, S), (batch, S), (batch, L, S) or (batch, heads, L, S), with batch = 3, L = 3, S = 3; "
        "got (2, 3, 3).",
    ),
    (
        torch.ones(3, dtype=torch.bool),
        ValueError,
        "mask must be (L, S), (batch, S), (batch, L, S) or (batch, heads, L, S), with batch = 3, L = 3, S = 3; "
        "got (3,).",
    ),
    (
        torch.ones(3, 3, 3),
        TypeError,
        "mask must be bool or integer 0/1, got float32 (3, 3, 3). A float mask could mean two things: "
        "write mask=(m != 0) if nonzero means may attend, or attn_bias=m if it is added to the scores.",
    ),
]


@pytest.mark.parametrize(("mask", "error", "message"), MESSAGES)
def test_masks_that_could_mean_two_things_are_refused(mask, error, message):
    """pytorch#21518, pytorch#120810: a float mask was added as a bias; (B, L, S) was aligned to the head axis."""
    x = torch.zeros(3, 3, E)
    with pytest.raises(error) as caught:
        MultiHeadAttention(E, H)(x, mask=mask)
    assert str(caught.value) == message


def test_the_spellings_of_the_message_work():
    x, keep = torch.randn(3, 3, E), torch.ones(3, 3, dtype=torch.bool).tril()
    mha = MultiHeadAttention(E, H)
    by_query = mha(x, mask=keep[None, None]).weights.full() > 0
    by_item = mha(x, mask=keep[:, None, None]).weights.full() > 0
    assert (by_query == keep).all()
    assert (by_item == keep[:, None, None]).all()
    assert (mha(x, mask=masks.padding(keep)).weights.full() > 0).equal(by_item)
