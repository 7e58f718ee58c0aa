"""What is said about heads, against the matrix of their weights."""

import pytest
import torch

import heedful
from heedful import masks
from heedful.heads import classify
from heedful.train.batches import Batches
from heedful.train.health import HeadHealth, examine, warnings_about
from heedful.train.learning import loss_of
from heedful.train.patterns import PATTERNS, Patterns, Shares, class_of

VOCABULARY, LENGTH = 29, 20


def dense_shares(weights, tokens, seen):
    """The definition, one query at a time: (weight, chance, queries) by pattern, batch item and head."""
    B, H, L, _ = weights.shape
    sums = torch.zeros(len(PATTERNS), 3, B, H, dtype=torch.float64)
    for b in range(B):
        for i in range(L):
            keys = [j for j in range(L) if seen[b, i, j]]
            chosen = {
                "previous token": [j for j in keys if j == i - 1],
                "first token": [j for j in keys if j == 0 and i > 0],
                "same token": [j for j in keys if j != i and tokens[b, j] == tokens[b, i]],
                "induction": [j for j in keys if 0 < j != i and tokens[b, j - 1] == tokens[b, i]],
            }
            for number, name in enumerate(PATTERNS):
                if chosen[name]:
                    sums[number, 0, b] += weights[b, :, i, chosen[name]].double().sum(-1)
                    sums[number, 1, b] += len(chosen[name]) / len(keys)
                    sums[number, 2, b] += 1
    return sums


@pytest.mark.parametrize("packed", [False, True])
def test_shares_are_those_of_the_matrix(packed):
    B, H, L = 2, 3, 17
    tokens = torch.randint(0, 5, (B, L))
    query, key, value = torch.randn(3, B, H, L, 8).unbind()
    documents = (
        torch.tensor([[0] * 6 + [1] * 11, [0] * 17]) if packed else torch.zeros(B, L, dtype=torch.int64)
    )
    mask = masks.causal() & masks.documents(documents)
    _, weights = heedful.scaled_dot_product_attention(3 * query, key, value, mask, reduce=Patterns(tokens))
    asked = next(answer for reduction, answer in weights._answers.items() if isinstance(reduction, Patterns))
    seen = torch.ones(L, L).tril().bool() & (documents[:, :, None] == documents[:, None, :])
    expected = dense_shares(weights.full(), tokens, seen)
    for number, part in enumerate(asked):
        torch.testing.assert_close(part.double(), expected[:, number].permute(1, 2, 0), rtol=1e-4, atol=1e-5)


def of(weight, chance, queries=100):
    """Shares of one head with these means."""
    counts = torch.full((len(PATTERNS),), float(queries))
    return Shares(torch.tensor(weight) * counts, torch.tensor(chance) * counts, counts)


def test_a_head_is_named_by_what_stands_out_above_chance():
    even = [0.1, 0.1, 0.1, 0.1]
    assert class_of(of([0.8, 0.1, 0.0, 0.1], even))[0] == "previous token"
    assert class_of(of([0.1, 0.7, 0.0, 0.1], even))[0] == "first token"
    assert class_of(of([0.1, 0.1, 0.1, 0.6], even))[0] == "induction"
    assert class_of(of([0.3, 0.2, 0.1, 0.3], even))[0] == "mixed"
    assert class_of(of([0.45, 0.48, 0.1, 0.42], even))[0] == "previous token"
    # Half of the keys are the same token: looking at them is what chance does.
    assert class_of(of([0.1, 0.1, 0.6, 0.1], [0.1, 0.1, 0.5, 0.1]))[0] == "mixed"
    assert class_of(of([0.8, 0.1, 0.0, 0.1], even, queries=2))[0] == "mixed"
    _, shares = class_of(of([0.8, 0.1, 0.0, 0.2], even))
    assert shares == pytest.approx(
        {"previous token": 0.8, "first token": 0.1, "same token": 0.0, "induction": 0.2}
    )


@pytest.mark.parametrize("seed", range(6))
def test_classes_are_those_of_heads_for_a_single_text(seed):
    """Where `heedful.heads` finds one of these patterns, so does training, with the same score."""
    torch.manual_seed(seed)
    tokens = torch.randint(0, 6, (1, 24))
    spots, marks = torch.randn(24, 32), torch.randn(6, 32)
    said, before = marks[tokens[0]], torch.cat([torch.zeros(1, 32), marks[tokens[0, :-1]]])
    first = torch.cat([spots[:1], torch.zeros(23, 32)])
    key = torch.stack([spots, first, said, before])
    query = torch.stack([spots.roll(1, 0), spots[:1].repeat(24, 1), said, said])
    _, weights = heedful.scaled_dot_product_attention(2 * query[None], key[None], key[None], masks.causal())
    shares = weights.reduce(Patterns(tokens))[0]
    for head, found in enumerate(classify(weights, tokens[0])):
        kind, measured = class_of(Shares(*(part[0, head] for part in shares)))
        if found.label in PATTERNS:
            assert (kind, measured[kind]) == (found.label, pytest.approx(found.score, rel=1e-4))
        else:
            assert kind == "mixed"
    labels = [found.label for found in classify(weights, tokens[0])]
    assert {"previous token", "first token", "induction"} <= set(labels)


def test_a_pattern_that_no_query_could_follow_counts_as_nothing():
    kind, shares = class_of(Shares(torch.zeros(4), torch.zeros(4), torch.zeros(4)))
    assert (kind, set(shares.values())) == ("mixed", {0.0})


def test_examine_measures_loss_and_heads_in_one_pass(model_for):
    model = model_for()
    tokens = torch.randint(0, VOCABULARY, (LENGTH * 9 + 1,), dtype=torch.int32)
    held_out = Batches(tokens, 28, LENGTH, 4)
    loss, health = examine(model, held_out, 6)
    batches = list(held_out.in_order(6))
    sizes = [len(batch.inputs) for batch in batches]
    assert sizes == [4, 2]
    expected = (
        sum(loss_of(model, batch).item() * size for batch, size in zip(batches, sizes, strict=True)) / 6
    )
    assert loss == pytest.approx(expected)
    for layer in range(3):
        weights = [model(b.inputs, b.mask, positions=b.positions).weights[layer] for b in batches]
        entropy = torch.cat([w.entropy() for w in weights]).mean((0, 2))
        largest = torch.cat([w.max_logit() for w in weights]).amax((0, 2))
        first = torch.cat([w[..., 1:, 0].mean(-1) for w in weights]).mean(0)
        for head in range(4):
            found = health.heads[layer][head]
            assert found.entropy == pytest.approx(entropy[head].item(), rel=1e-4)
            assert found.max_logit == pytest.approx(largest[head].item(), rel=1e-4)
            if not any(batch.documents.any() for batch in batches):
                assert found.sink == pytest.approx(first[head].item(), rel=1e-4)


def head(entropy=2.0, max_logit=5.0):
    return HeadHealth(entropy, max_logit, 0.1, "mixed", {})


def test_warnings():
    assert warnings_about(((head(), head(entropy=0.01)), (head(), head()))) == ()
    assert warnings_about(((head(entropy=0.02), head(entropy=0.04)), (head(), head(max_logit=140.2)))) == (
        "Entropy collapse in layer 0: every head looks at one token (at most 0.04 nats). "
        "A lower rate, a longer warm-up or --qk-norm helps.",
        "Large scores in layer 1, head 1: up to 140. "
        "Runs tend to diverge from here; a lower rate, weight decay or --qk-norm helps.",
    )
