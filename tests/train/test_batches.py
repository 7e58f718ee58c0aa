"""Windows of packed documents, in an order that the seed decides."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heedful.train.batches import Batches, derived_seed

BEGIN = 99


def numbers(count):
    return torch.arange(count, dtype=torch.int32) % 90


@given(
    length=st.integers(20, 300), context=st.integers(1, 19), size=st.integers(1, 7), seed=st.integers(0, 3)
)
def test_one_epoch_shows_each_of_its_windows_once(length, context, size, seed):
    tokens = torch.arange(length, dtype=torch.int32)
    batches = Batches(tokens, BEGIN + length, context, size, seed)
    seen = torch.cat([batches.at(step).inputs for step in range(-(-batches.windows // size))])[
        : batches.windows
    ]
    starts = seen[:, 0].sort().values
    assert torch.equal(starts.diff(), torch.full((batches.windows - 1,), context))
    assert torch.equal(seen, seen[:, :1] + torch.arange(context))


def test_targets_are_the_next_inputs():
    batch = Batches(numbers(500), BEGIN, 12, 5).at(3)
    assert batch.inputs.shape == batch.targets.shape == (5, 12)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert torch.equal((batch.inputs + 1) % 90, batch.targets)


def test_a_batch_depends_on_the_step_alone():
    tokens = numbers(1000)
    forwards, backwards = Batches(tokens, BEGIN, 9, 4, 7), Batches(tokens, BEGIN, 9, 4, 7)
    ahead = {step: forwards.at(step, echo=0.5) for step in range(90)}
    for step in reversed(range(90)):
        assert torch.equal(ahead[step].inputs, backwards.at(step, echo=0.5).inputs)
    assert not torch.equal(Batches(tokens, BEGIN, 9, 4, 8).at(0).inputs, forwards.at(0).inputs)


def test_epochs_differ_in_order_and_offset():
    batches = Batches(numbers(200), BEGIN, 10, 19)
    first, second = batches.at(0).inputs[:, 0], batches.at(1).inputs[:, 0]
    assert batches.windows == 18
    assert not torch.equal(first, second)


def test_documents_and_positions_within_a_window():
    tokens = torch.tensor([BEGIN, 1, 2, BEGIN, 3, BEGIN, 4, 5, 6, 7, BEGIN, 8], dtype=torch.int32)
    (batch,) = Batches(tokens, BEGIN, 9, 2).in_order()
    assert batch.inputs.tolist() == [[BEGIN, 1, 2, BEGIN, 3, BEGIN, 4, 5, 6]]
    assert batch.documents.tolist() == [[0, 0, 0, 1, 1, 2, 2, 2, 2]]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2, 3]]


def test_the_mask_is_causal_within_documents():
    tokens = torch.tensor([1, 2, BEGIN, 3, 4, 5, BEGIN, 6, 7], dtype=torch.int32)
    (batch,) = Batches(tokens, BEGIN, 4, 3).in_order()
    seen = batch.mask.to_dense(4, 4).expand(2, 1, 4, 4)
    for window in range(2):
        for query in range(4):
            for key in range(4):
                same = batch.documents[window, query] == batch.documents[window, key]
                assert seen[window, 0, query, key] == (same and key <= query)
    alone = Batches(numbers(30), BEGIN, 4, 2).at(0)
    assert torch.equal(alone.mask.to_dense(4, 4), torch.ones(4, 4).tril().bool())


def test_evaluation_goes_through_the_text_in_order():
    batches = Batches(numbers(60), BEGIN, 7, 3)
    windows = torch.cat([batch.inputs for batch in batches.in_order()])
    assert torch.equal(windows.flatten(), numbers(60)[: 8 * 7].long())
    assert sum(len(batch.inputs) for batch in batches.in_order(most=4)) == 4


def test_echoes_repeat_their_first_part_and_are_one_document():
    tokens = torch.randint(0, 90, (4000,), dtype=torch.int32)
    tokens[::5] = BEGIN
    batches = Batches(tokens, BEGIN, 32, 50, seed=3)
    echoes, periods = 0, set()
    for step in range(8):
        batch, before = batches.at(step, echo=0.4), batches.at(step)
        window = torch.cat([batch.inputs, batch.targets[:, -1:]], 1)
        for row in range(50):
            if torch.equal(batch.inputs[row], before.inputs[row]):
                continue
            echoes += 1
            period = next(p for p in range(1, 34) if torch.equal(window[row, p:], window[row, :-p]))
            assert torch.equal(batch.inputs[row, :period], before.inputs[row, :period])
            assert not batch.documents[row].any()
            periods.add(period)
    assert 0.3 < echoes / 400 < 0.5
    assert min(periods) == 4
    assert max(periods) == 16


def test_seeds_for_different_purposes_differ():
    assert len({derived_seed(0, "step", 1), derived_seed(0, "step", 11), derived_seed(1, "step", 1)}) == 3
    assert derived_seed(0, "step", 1) == derived_seed(0, "step", 1)


def test_too_few_tokens():
    with pytest.raises(ValueError) as caught:
        Batches(numbers(8), BEGIN, 8, 1)
    assert str(caught.value) == "Batches(): a context of 8 needs more tokens than that, got 8."
