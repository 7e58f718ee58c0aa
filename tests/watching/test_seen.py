"""How what was seen is asked: by name, by number, call by call, as rows of a generation, as whole matrices."""

import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heedful
from heedful.watching import NotSeen, watch
from watched_models import Attention, Small, text


def watched(times: int = 1, *reductions: heedful.Reduction):
    model = Small()
    with torch.no_grad(), watch(model, *reductions) as seen:
        for length in range(5, 5 - times, -1):
            model(text()[:, :length])
    return seen, model


def test_a_single_call_is_its_weights() -> None:
    seen, model = watched()
    calls, expected = seen["layers.1"], model.weights(text())[1]
    torch.testing.assert_close(calls[0, 2, -1].double(), expected[0, 2, -1], atol=1e-6, rtol=1e-5)
    assert torch.equal(calls.entropy(), calls.calls[0].entropy())
    assert torch.equal(calls @ torch.ones(5), calls.calls[0] @ torch.ones(5))
    assert len(calls) == 1
    assert [weights.shape for weights in calls] == [(2, 3, 5, 5)]
    assert repr(calls) == "Calls('layers.1', 1 x weights (2, 3, 5, 5))"
    with pytest.raises(AttributeError, match="'Weights' object has no attribute 'shine'"):
        calls.shine  # noqa: B018


def test_several_calls_must_be_chosen_from() -> None:
    seen, _ = watched(3)
    calls = seen.layers[0]
    assert [tuple(calls[i].shape) for i in range(3)] == [(2, 3, n, n) for n in (5, 4, 3)]
    assert [weights.shape for weights in calls[1:]] == [(2, 3, 4, 4), (2, 3, 3, 3)]
    assert repr(calls) == "Calls('layers.0', 3 x weights (2, 3, 5, 5), (2, 3, 4, 4), (2, 3, 3, 3))"
    told = (
        "'layers.0' was called 3 times, so {0} could mean any of them. Choose a call, 0 to 2: seen['layers.0'][2]{0}. "
        "For the row that produced each new token, use .rows()."
    )
    for error, asked, ask in (
        (AttributeError, ".entropy", lambda: calls.entropy()),
        (TypeError, "[(0, 1)]", lambda: calls[0, 1]),
        (TypeError, " @ x", lambda: calls @ torch.ones(5)),
    ):
        with pytest.raises(error) as caught:
            ask()
        assert str(caught.value) == told.format(asked)


def test_names_patterns_and_numbers() -> None:
    seen, _ = watched()
    assert list(seen) == ["layers.0", "layers.1", "layers.2"]
    assert seen["*.1"].name == "layers.1"
    assert [calls.name for calls in seen.layers[1:]] == ["layers.1", "layers.2"]
    assert len(seen.layers) == len(seen) == 3
    assert "layers.0" in seen
    assert "*.0" not in seen
    assert repr(seen) == "Seen(Small: 3 calls of 3 attention modules: 'layers.0', 'layers.1', 'layers.2'.)"
    for name, message in {
        "layers": "'layers' could be 'layers.0', 'layers.1', 'layers.2'. Name one of them.",
        "layers.7": "'layers.7' was not seen. Small: 3 calls of 3 attention modules: 'layers.0', 'layers.1', "
        "'layers.2'.",
    }.items():
        with pytest.raises(NotSeen) as caught:
            seen[name]
        assert str(caught.value) == message


class Decoder(nn.Module):
    """Reads a token at a time, keeps keys and values, and puts its batch in another order when told to."""

    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, x, order=None):
        return self.attention_of(x, order)

    def attention_of(self, x, order):
        query, key, value = self.attention.heads(x)
        if hasattr(self, "past"):
            key, value = (torch.cat([old, new], 2) for old, new in zip(self.past, (key, value), strict=True))
        self.past = (key, value)
        output = F.scaled_dot_product_attention(query, key, value)
        if order is not None:
            self.past = (key[order], value[order])
        return output


def test_rows_stitch_the_steps_of_a_generation() -> None:
    """The first step holds a row per prompt token, later ones a single row (transformers#40752)."""
    model, x = Decoder(), torch.randn(2, 6, 24)
    with torch.no_grad(), watch(model) as seen:
        model(x[:, :3])
        for step in range(3, 6):
            model(x[:, step : step + 1])
    rows = seen.rows()[""]
    expected = model.attention.weights(x)[:, :, 2:]
    assert rows.shape == (2, 3, 4, 6)
    torch.testing.assert_close(rows.double(), expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(seen[""].rows(), rows)


def test_rows_follow_beams() -> None:
    """Beams change places between steps; a sequence's row of step t is that of the beam it came from."""
    model, x = Decoder(), torch.randn(4, 3, 24)
    order = torch.tensor([2, 2, 0, 1])
    with torch.no_grad(), watch(model) as seen:
        model(x[:, :2], order)
        model(x[:, 2:])
    first, second = (weights[..., -1, :] for weights in seen[""])
    # Sequence 0 ended in beam 3, which came from beam 1 of the first step. Sequence 1 ended after one step, in beam 2.
    beams = torch.tensor([[1, 3], [2, -1]])
    rows = seen[""].rows(beams)
    assert rows.shape == (2, 3, 2, 3)
    assert torch.equal(rows[0, :, 0, :2], first[1])
    assert torch.equal(rows[0, :, 1], second[3])
    assert torch.equal(rows[1, :, 0, :2], first[2])
    assert torch.equal(rows[1, :, 1], torch.zeros(3, 3))
    assert torch.equal(rows[:, :, 0, 2], torch.zeros(2, 3))
    for wrong in (torch.tensor([[4, 0]]), torch.tensor([1, 3])):
        with pytest.raises(ValueError) as caught:
            seen[""].rows(wrong)
        assert str(caught.value) == (
            "beam_indices must be (sequences, steps) with numbers below the batch of 4 beams, got "
            f"{tuple(wrong.shape)} up to {int(wrong.max())}. It is generate(...).beam_indices."
        )


def test_rows_need_steps() -> None:
    seen, _ = watched()
    with pytest.raises(NotSeen) as caught:
        seen.rows()
    assert str(caught.value) == (
        "No module was called more than once, so there are no steps to stitch. Small: 3 calls of 3 attention modules: "
        "'layers.0', 'layers.1', 'layers.2'."
    )


def test_to_tuple_is_what_attentions_are() -> None:
    seen, model = watched()
    found = seen.to_tuple()
    assert isinstance(found, tuple)
    for weights, expected in zip(found, model.weights(text()), strict=True):
        torch.testing.assert_close(weights.double(), expected, atol=1e-6, rtol=1e-5)
    assert len(seen.to_tuple("*.2")) == 1
    several, _ = watched(2)
    assert [tuple(x.shape) for x in several.to_tuple(step=1)] == [(2, 3, 4, 4)] * 3
    with pytest.raises(ValueError) as caught:
        several.to_tuple()
    assert str(caught.value) == (
        "to_tuple() needs step=: 'layers.0' was called 2 times. For the rows of a generation use rows()."
    )
    with pytest.raises(NotSeen) as caught:
        seen.to_tuple("encoder.*")
    assert str(caught.value) == (
        "to_tuple('encoder.*') matches nothing. Small: 3 calls of 3 attention modules: 'layers.0', 'layers.1', "
        "'layers.2'."
    )


def test_to_tuple_refuses_what_does_not_fit() -> None:
    model = Small(Attention)
    with torch.no_grad(), watch(model) as seen:
        model(torch.zeros(1, 20_000, 24))
    with pytest.raises(MemoryError) as caught:
        seen.to_tuple()
    assert str(caught.value) == (
        "to_tuple() would hold 4.5 GiB in 1 matrices. Give a pattern for fewer modules, or ask for rows, entropy(), "
        "topk(k) or received()."
    )


@pytest.mark.parametrize("reductions", [(), (heedful.Entropy(), heedful.TopK(2))])
def test_pickle_keeps_what_was_seen(reductions) -> None:
    seen, _ = watched(2, *reductions)
    again = pickle.loads(pickle.dumps(seen))
    assert list(again) == list(seen)
    for name in seen:
        for before, after in zip(seen[name], again[name], strict=True):
            assert type(after) is type(before)
            assert torch.equal(before.entropy(), after.entropy())
            assert torch.equal(before.topk(2).indices, after.topk(2).indices)
