"""Head classes on attention that is known, each sum against the dense matrix, and rollout against the product."""

import pytest
import torch
from torch import Tensor

import heedful
from heedful import Weights, masks
from heedful.heads import CLASSES, KINDS, NEAR, Kinds, classify, question_about, rollout, stands_out

WORDS = [
    *["the", "cat", "sat", "on", "the", "mat", ".", "then", "the", "dog", "sat"],
    *["on", "the", "cat", ",", "and", "the", "cat", "ran"],
]
L = len(WORDS)


def weights_like(logits: Tensor, mask: masks.Mask | None = None) -> Weights:
    """Weights whose scores are exactly these, (H, L, L): queries are rows of scores, keys the unit vectors."""
    H, _, S = logits.shape
    key = torch.eye(S).expand(1, H, S, S)
    return heedful.scaled_dot_product_attention(logits[None], key, key, mask, scale=1.0).weights


def pattern(function) -> Tensor:
    """Scores of 9 where a head is meant to look, 0 elsewhere."""
    return torch.tensor([[9.0 * bool(function(i, j)) for j in range(L)] for i in range(L)])


LOOKS = {
    "previous token": lambda i, j: j == i - 1,
    "next token": lambda i, j: j == i + 1,
    "itself": lambda i, j: j == i,
    "first token": lambda i, j: j == 0,
    "separators": lambda i, j: WORDS[j] in ".,",
    "same token": lambda i, j: WORDS[j] == WORDS[i] and i != j,
    "induction": lambda i, j: 0 < j < i and WORDS[j - 1] == WORDS[i],
    "broad": lambda i, j: False,
    "local": lambda i, j: 1 < abs(i - j) <= NEAR,
    "mixed": lambda i, j: (7 * i + 3 * j) % 11 == 0 and abs(i - j) > NEAR,
}


def test_each_class_is_recognized() -> None:
    weights = weights_like(torch.stack([pattern(look) for look in LOOKS.values()]))
    found = classify(weights, WORDS)
    assert [each.label for each in found] == list(LOOKS)
    assert [each.letter for each in found] == [letter for letter, _ in CLASSES.values()]
    for each in found:
        assert each.rule == CLASSES[each.label][1]
        assert 0 <= each.chance <= 1
    by_label = {each.label: each for each in found}
    assert by_label["previous token"].support == L - 1
    assert by_label["separators"].score > 0.9
    repeated = sum(WORDS.count(word) > 1 for word in WORDS)
    assert by_label["same token"].support == repeated
    assert by_label["induction"].support == sum(
        any(WORDS[j] == WORDS[i] for j in range(i - 1)) for i in range(L)
    )


@pytest.mark.parametrize("mask", [None, masks.causal()])
def test_sums_are_those_of_the_matrix(mask: masks.Mask | None) -> None:
    logits = torch.randn(3, L, L)
    weights = weights_like(logits, mask)
    ids, marks = tuple(range(7)) * 2 + tuple(range(L - 14)), tuple(i % 5 == 0 for i in range(L))
    counted = tuple(i % 3 > 0 for i in range(L))
    sums, widths = weights.reduce(Kinds(ids, marks, counted))[0]
    matrix = weights.full()[0].double()
    keep = torch.ones(L, L).tril() if mask is not None else torch.ones(L, L)
    looks = {
        "previous token": lambda i, j: j == i - 1,
        "next token": lambda i, j: j == i + 1,
        "itself": lambda i, j: j == i,
        "first token": lambda i, j: j == 0 and i != 0,
        "separators": lambda i, j: marks[j] and j not in (0, i),
        "same token": lambda i, j: ids[j] == ids[i] and i != j,
        "induction": lambda i, j: 0 < j < i and ids[j - 1] == ids[i],
        "local": lambda i, j: abs(i - j) <= NEAR,
    }
    for number, kind in enumerate(KINDS):
        where = torch.tensor([[float(looks[kind](i, j)) for j in range(L)] for i in range(L)])
        even = (keep / keep.sum(-1, keepdim=True) * where).sum(-1)
        rows = (even > 0) & torch.tensor(counted)
        expected = torch.stack(
            [(matrix * where).sum(-1)[:, rows].sum(-1), even[rows].sum().expand(3), rows.sum().expand(3)]
        )
        torch.testing.assert_close(sums[0, :, :, number].double(), expected.T.double(), atol=1e-5, rtol=1e-5)
    choices = keep.sum(-1)
    rows = (choices > 1) & torch.tensor(counted)
    share = (torch.special.entr(matrix).sum(-1)[:, rows] / choices[rows].log()).sum(-1)
    torch.testing.assert_close(widths[0, :, 0].double(), share, atol=1e-5, rtol=1e-5)
    assert (widths[0, :, 1] == rows.sum()).all()


def test_even_attention_is_broad_however_short_the_text() -> None:
    for length in (2, 3, 6, 40):
        logits = torch.zeros(2, length, length)
        for mask in (None, masks.causal()):
            found = classify(weights_like(logits, mask), [f"w{i}" for i in range(length)])
            assert [each.label for each in found] == ["broad", "broad"]
            assert found[0].score == pytest.approx(1.0)


def test_heads_that_may_see_different_keys_are_counted_by_themselves() -> None:
    everybody = torch.ones(L, L, dtype=torch.bool)
    keep = torch.stack([everybody.tril(), everybody.triu(), everybody])[None]
    weights = weights_like(torch.stack([pattern(LOOKS["itself"]) / 3] * 3), masks.dense(keep))
    together = classify(weights, WORDS)
    assert together == [classify(weights[:, head : head + 1], WORDS)[0] for head in range(3)]
    assert len({each.chance for each in together}) > 1


@pytest.mark.parametrize("separators", [None, [i % 4 == 3 for i in range(L)]])
def test_asked_in_the_same_pass_as_others_it_is_not_asked_again(separators, monkeypatch) -> None:
    looks = torch.stack([pattern(look) for look in LOOKS.values()])
    question = question_about(WORDS, separators=separators)
    expected = classify(weights_like(looks), WORDS, separators=separators)
    key = torch.eye(L).expand(1, len(LOOKS), L, L)
    _, weights = heedful.scaled_dot_product_attention(
        looks[None], key, key, scale=1.0, reduce=(heedful.Entropy(), question)
    )
    monkeypatch.setattr(Kinds, "panel", lambda self, panel: pytest.fail("asked again"))
    assert classify(weights, WORDS, separators=separators) == expected


def test_too_few_queries_name_no_class() -> None:
    words = ["one", "two", "three", "two", "four", "five", "six", "seven"]
    logits = torch.zeros(1, 8, 8)
    logits[0, 3, 1] = logits[0, 1, 3] = 9
    assert classify(weights_like(logits), words)[0].label == "mixed"


@pytest.mark.parametrize(
    ("kind", "share", "chance", "support", "named"),
    [
        ("next token", 0.4, 0.1, 3, True),
        ("next token", 0.39, 0.1, 3, False),
        ("next token", 0.4, 0.1, 2, False),
        ("first token", 0.49, 0.1, 3, False),
        ("first token", 0.5, 0.1, 3, True),
        ("separators", 0.47, 0.16, 9, False),
        ("separators", 0.49, 0.16, 9, True),
        ("separators", 0.74, 0.5, 9, False),
        ("separators", 0.75, 0.5, 9, True),
    ],
)
def test_a_share_must_be_large_and_more_than_chance(kind, share, chance, support, named) -> None:
    """Three times chance, or half of what is left above it where that is less."""
    assert stands_out(kind, share, chance, support) is named


def test_ids_and_given_separators() -> None:
    ids = torch.arange(L)
    separators = [i % 4 == 3 for i in range(L)]
    logits = torch.tensor([[9.0 * separators[j] for j in range(L)] for _ in range(L)])[None]
    assert classify(weights_like(logits), ids, separators=separators)[0].label == "separators"
    assert classify(weights_like(logits)[0], ids.tolist(), separators=separators)[0].label == "separators"
    assert classify(weights_like(logits), ids)[0].label != "separators"


def test_special_tokens_do_not_count_as_queries() -> None:
    from heedful.models.reading import Token

    tokens = [Token(word, i, 0, 0, special=word in ".,", continues=False) for i, word in enumerate(WORDS)]
    (found,) = classify(weights_like(pattern(LOOKS["previous token"])[None]), tokens)
    assert found.label == "previous token"
    assert found.support == L - 1 - 2


def test_bad_input() -> None:
    weights = weights_like(torch.zeros(2, L, L))
    two = heedful.scaled_dot_product_attention(*torch.randn(3, 2, 4, L, 8)).weights
    for given, tokens, separators, message in (
        (
            two,
            WORDS,
            None,
            f"weights must be self-attention of one text, (heads, L, L) or (1, heads, L, L), got (2, 4, {L}, {L}). "
            "Choose one text of a batch with weights[i].",
        ),
        (weights, WORDS[:-1], None, f"tokens must have one entry per token, {L}, got {L - 1}."),
        (weights, WORDS, [True], f"separators must have one entry per token, {L}, got 1."),
    ):
        with pytest.raises(ValueError) as caught:
            classify(given, tokens, separators=separators)
        assert str(caught.value) == message


# Rollout


def layers_of(count: int, **options) -> list[Weights]:
    return [
        heedful.scaled_dot_product_attention(*torch.randn(3, 2, 4, 7, 8), masks.causal(), **options).weights
        for _ in range(count)
    ]


@pytest.mark.parametrize("options", [{}, {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])}])
@pytest.mark.parametrize("target", [6, -3, [0, 5, -1]])
def test_rollout_is_the_product_of_the_steps(target, options) -> None:
    layers = layers_of(5, **options)
    product = torch.eye(7, dtype=torch.float64).expand(2, 7, 7)
    for layer in layers:
        step = layer.full().double().mean(1) + torch.eye(7)
        product = step / step.sum(-1, keepdim=True) @ product
    found = rollout(layers, target)
    torch.testing.assert_close(found.double(), product[:, target], atol=1e-6, rtol=1e-5)


def test_rollout_of_weights_without_a_batch_and_its_gradient() -> None:
    query, key, value = torch.randn(3, 2, 4, 7, 8)
    query.requires_grad_()
    layers = [
        heedful.scaled_dot_product_attention(query, key, value, masks.causal()).weights[0] for _ in range(3)
    ]
    found = rollout(layers, 6)
    assert found.shape == (7,)
    found[0].backward()
    assert query.grad[0].abs().sum() > 0
    assert query.grad[1].abs().sum() == 0


def test_rollout_builds_no_matrix() -> None:
    """Twelve layers at 8,192 tokens would be 38 GB of matrices."""

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                self.numbers = max(self.numbers, result.untyped_storage().nbytes() // 4)
            return result

    length = 2500
    query, key, value = torch.randn(3, 1, 2, length, 4)
    weights = heedful.scaled_dot_product_attention(query, key, value, masks.causal()).weights
    with Largest() as largest:
        found = rollout([weights, weights], -1)
    torch.testing.assert_close(found.sum(), torch.tensor(1.0))
    assert largest.numbers < length * length / 4


def test_rollout_of_bad_input() -> None:
    square, wide = (
        layers_of(1)[0],
        heedful.scaled_dot_product_attention(
            *torch.randn(1, 2, 3, 4, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)
        ).weights,
    )
    for layers, target, error, message in (
        ([], 0, ValueError, "weights must be layers of one shape, got []."),
        (
            [square, wide],
            0,
            ValueError,
            "weights must be layers of one shape, got [(2, 4, 7, 7), (2, 3, 4, 5)].",
        ),
        ([wide], 0, ValueError, "weights must be self-attention, (..., H, L, L), got (2, 3, 4, 5)."),
        ([square], 7, IndexError, "target 7 is not one of the 7 tokens."),
    ):
        with pytest.raises(error) as caught:
            rollout(layers, target)
        assert str(caught.value) == message
