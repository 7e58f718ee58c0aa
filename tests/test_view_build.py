"""The picture's numbers are the weights' own, and choices are explained or refused."""

import math
from dataclasses import asdict, replace

import pytest
import torch

import heedful
from heedful import masks
from heedful.heads import NEAR, classify
from heedful.models.reading import Following, Reading, TextRefused, Token
from heedful.view.build import BadChoice, find_token, picture_of
from heedful.view.picture import SCHEMA, to_json
from heedful.view.summary import PLACES, Places
from view_example import cat_reading, reading_of, tokens_of

TOKENS = tokens_of(
    "[CLS]", "the", "cat", "saw", "the", "cat", ",", "un", "##know", "##n", "to", "the", "dog", "[SEP]"
)


def random_reading(causal: bool) -> Reading:
    """Three layers of two heads over TOKENS, from random queries and keys."""
    generator = torch.Generator().manual_seed(1)
    n, layers = len(TOKENS), []
    for _ in range(3):
        query, key, value = (3 * torch.randn(1, 2, n, 5, generator=generator) for _ in range(3))
        mask = masks.causal() if causal else None
        layers.append(heedful.scaled_dot_product_attention(query, key, value, mask).weights)
    return Reading("random", "the cat saw the cat, unknown to the dog", TOKENS, tuple(layers), causal)


def place_of(query: int, key: int) -> str:
    """The rule of `PLACES`, spelled out for one pair of TOKENS."""
    if key == query:
        return "self"
    if key == 0:
        return "first"
    if key == query - 1:
        return "previous"
    if key == query + 1:
        return "next"
    if TOKENS[key].special or TOKENS[key].text == ",":
        return "special"
    if TOKENS[key].id == TOKENS[query].id:
        return "same"
    return "near" if abs(key - query) <= NEAR else "far"


@pytest.mark.parametrize("causal", [False, True])
def test_summaries_are_what_the_matrix_says(causal):
    reading = random_reading(causal)
    picture = picture_of(reading)
    counted = [i for i, token in enumerate(TOKENS) if not token.special]
    for layer, weights in enumerate(reading.weights):
        for head, matrix in enumerate(weights.full()[0].tolist()):
            shares = dict.fromkeys(PLACES, 0.0)
            chance = dict.fromkeys(PLACES, 0.0)
            entropy = 0.0
            for i in counted:
                visible = range(i + 1) if causal else range(len(TOKENS))
                for j in visible:
                    shares[place_of(i, j)] += matrix[i][j] / len(counted)
                    chance[place_of(i, j)] += 1 / len(visible) / len(counted)
                nats = -sum(matrix[i][j] * math.log(matrix[i][j]) for j in visible)
                entropy += nats / math.log(len(visible)) / len(counted)
            summary = picture.heads[layer][head]
            assert (summary.layer, summary.head) == (layer, head)
            found = classify(weights[:, head : head + 1], TOKENS)[0]
            assert (summary.label, summary.letter, summary.support) == (
                found.label,
                found.letter,
                found.support,
            )
            assert (summary.score, summary.chance) == pytest.approx((found.score, found.chance), abs=1e-6)
            closely = picture_of(reading, layer, head)
            assert closely.places == pytest.approx(shares, abs=1e-5)
            assert closely.chance == pytest.approx(chance, abs=1e-5)
            assert summary.entropy == pytest.approx(entropy, abs=1e-5)


def test_places_stream_as_well_as_they_build():
    """The same answer in one panel, in many panels, and from the matrix."""
    generator = torch.Generator().manual_seed(2)
    n = 700
    query, key, value = (torch.randn(2, 4, n, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    ids = tuple((torch.arange(n) % 50).tolist())
    places = Places(ids, tuple(i % 7 == 0 for i in range(n)), tuple(i % 3 > 0 for i in range(n)))
    answers = [
        heedful.scaled_dot_product_attention(
            query, key, value, masks.causal(), backend=backend
        ).weights.reduce(places)
        for backend in ("reference", "panels")
    ]
    (reference,), (panels,) = answers
    assert reference.shape == (2, 4, 2, len(PLACES))
    torch.testing.assert_close(panels, reference)
    torch.testing.assert_close(
        reference.sum(-1), torch.full((2, 4, 2), float(sum(places.counted)), dtype=torch.float64)
    )


@pytest.mark.parametrize("causal", [False, True])
def test_the_chosen_head_is_shown_as_it_is(causal):
    reading = random_reading(causal)
    picture = picture_of(reading, layer=2, head=1, token=5)
    matrix = reading.weights[2].full()[0, 1]
    n = len(TOKENS)
    assert (picture.choice.layer, picture.choice.head, picture.choice.query) == (2, 1, 5)
    torch.testing.assert_close(torch.tensor(picture.matrix), matrix)
    torch.testing.assert_close(torch.tensor(picture.looks_at), matrix[5])
    torch.testing.assert_close(torch.tensor(picture.seen_by), matrix[:, 5])
    for i, row in enumerate(picture.rows):
        visible = i + 1 if causal else n
        expected = matrix[i].sort(descending=True)
        found = min(8, visible)
        assert [link.query for link in row.links] == [i] * found
        assert [link.key for link in row.links] == expected.indices[:found].tolist()
        assert [link.weight for link in row.links] == pytest.approx(
            expected.values[:found].tolist(), abs=1e-6
        )
        assert row.rest == pytest.approx(float(expected.values[found:].sum()), abs=1e-5)
        assert row.others == visible - found


def test_the_matrix_of_a_long_text_is_not_built():
    tokens = tokens_of(*(f"w{i}" for i in range(513)))
    picture = picture_of(reading_of(tokens, torch.full((1, 1, 513, 513), 1 / 513)))
    assert picture.matrix is None
    assert len(picture.looks_at) == len(picture.seen_by) == len(picture.rows) == 513


def test_the_choice_is_the_strongest_link_at_a_distance():
    choice = picture_of(cat_reading()).choice
    assert (choice.layer, choice.head, choice.query, choice.link.key) == (1, 1, 6, 2)
    assert choice.kind == "words that are not neighbors"
    assert (choice.layer_given, choice.head_given, choice.token_given) == (False, False, False)


def test_heads_that_go_by_position_are_chosen_only_if_there_is_no_other():
    """In `cat_reading` heads 0 and 1 of layer 0 look at the token before and after, with more weight than any other."""
    picture = picture_of(cat_reading(), layer=0)
    assert [head.letter for head in picture.heads[0]] == ["P", "N", "S"]
    assert picture.choice.head == 2
    assert picture_of(cat_reading(), layer=0, head=1).choice.head == 1


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["[CLS]", "one", "two", "three", "[SEP]"], "words that are not neighbors"),
        (["[CLS]", "one", "two", "[SEP]"], "words"),
        (["[CLS]", "on", "##e", "[SEP]"], "pieces of words"),
        (["[CLS]", "one", "[SEP]"], "a word and a mark"),
        (["[CLS]", "[SEP]"], "two tokens"),
        (["[CLS]"], "tokens"),
    ],
)
def test_any_text_has_something_to_show(texts, kind):
    tokens = tokens_of(*texts)
    n = len(tokens)
    weights = torch.rand(1, 2, n, n, generator=torch.Generator().manual_seed(n)) + 0.1
    picture = picture_of(reading_of(tokens, weights))
    assert picture.choice.kind == kind
    assert picture.choice.link.weight == pytest.approx(picture.looks_at[picture.choice.link.key], abs=1e-6)


def test_links_are_the_strongest_of_their_kind():
    picture = picture_of(random_reading(causal=False), layer=1, head=0)
    words = [1, 2, 3, 4, 5, 10, 11, 12]
    numbers = [0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 8, 9, 10, 11]
    matrix = picture.matrix
    assert matrix is not None
    expected = sorted(
        ((matrix[i][j], i, j) for i in words for j in words if abs(numbers[i] - numbers[j]) > 1), reverse=True
    )
    expected = [link for link in expected if link[0] > 1 / len(TOKENS)][:6]
    assert [(link.query, link.key) for link in picture.links] == [(i, j) for _, i, j in expected]
    assert [link.weight for link in picture.links] == pytest.approx(
        [weight for weight, _, _ in expected], abs=1e-6
    )


def test_a_text_said_twice_shows_induction():
    """A head that looks at what followed the same word before: the grid has a letter for it."""
    tokens = tokens_of(*(2 * ["the", "grey", "heron", "waits", "at", "our", "weir"]))
    n = len(tokens)
    weights = torch.full((1, 2, n, n), 0.1 / n)
    weights[0, 0, torch.arange(7, n), torch.arange(1, n - 6)] += 0.9
    weights[0, 0, :7, 0] += 0.9
    weights[0, 1] += 0.9 / n
    picture = picture_of(reading_of(tokens, weights, causal=True))
    assert [(head.letter, head.label) for head in picture.heads[0]] == [("I", "induction"), ("B", "broad")]
    assert picture.heads[0][0].support == 7
    assert (picture.choice.link.query - picture.choice.link.key) == 6


def test_single_characters_are_no_words():
    """Byte by byte, "a" between spaces is one more character; where words are tokens, it is a word."""
    text = "a tin a"
    tokens = tuple(
        Token(sign, ord(sign), i, i + 1, special=False, continues=sign in "in") for i, sign in enumerate(text)
    )
    weights = torch.rand(1, 1, 7, 7, generator=torch.Generator().manual_seed(5)).softmax(-1)
    assert picture_of(reading_of(tokens, weights)).choice.kind == "pieces of words"
    words = tuple(replace(token, continues=False) for token in tokens)
    assert picture_of(reading_of(words, weights)).choice.kind == "words that are not neighbors"


def test_links_to_a_sink_tell_nothing():
    """Without a special token in front, the first word is the sink, and other links are chosen."""
    tokens = tokens_of("once", "upon", "a", "time", "there", "was", "one")
    n = len(tokens)
    weights = torch.full((1, 2, n, n), 0.01)
    weights[0, :, :, 0] += 0.8
    weights[0, 1, 5, 2] += 0.4
    picture = picture_of(reading_of(tokens, weights / weights.sum(-1, keepdim=True), causal=True))
    assert [head.letter for head in picture.heads[0]] == ["S", "S"]
    assert (picture.choice.head, picture.choice.link.query, picture.choice.link.key) == (1, 5, 2)
    assert all(link.key for link in picture.links)


@pytest.mark.parametrize("causal", [False, True])
def test_without_the_sink_weights_are_shared_out_among_the_others(causal):
    reading = random_reading(causal)
    aside = reading.without_sink()
    assert (aside.sink_set_aside, reading.sink_set_aside) == (True, False)
    for before, after in zip(reading.weights, aside.weights, strict=True):
        expected = before.full()
        expected[..., 0] = 0
        expected = expected / expected.sum(-1, keepdim=True).where(expected.sum(-1, keepdim=True) > 0, 1)
        torch.testing.assert_close(after.full(), expected)
    picture = picture_of(aside, layer=1, head=1, token=5)
    assert picture.sink_set_aside
    assert all(head.letter != "S" for heads in picture.heads for head in heads)
    assert picture.places["first"] == picture.chance["first"] == 0
    assert sum(picture.chance.values()) == pytest.approx(1, abs=1e-5)
    assert picture.looks_at[0] == 0
    seen = [max(0, i) if causal else len(TOKENS) - 1 for i in range(len(TOKENS))]
    assert [row.others + len(row.links) for row in picture.rows] == seen


def test_a_token_that_sees_nothing_but_the_sink_is_refused():
    with pytest.raises(BadChoice) as caught:
        picture_of(random_reading(causal=True).without_sink(), token=0)
    assert str(caught.value) == "token: token 0 sees nothing but the first, which is set aside."


def test_one_token_cannot_do_without_the_sink():
    reading = reading_of(tokens_of("hi"), torch.ones(1, 1, 1, 1), causal=True)
    with pytest.raises(TextRefused) as caught:
        reading.without_sink()
    assert str(caught.value) == "'hi' is one token; set aside, it leaves nothing to look at."


def test_windows_are_counted_as_they_are():
    """A token behind a window has fewer others, and its entropy is a share of what is possible there."""
    query, key, value = torch.randn(3, 1, 2, len(TOKENS), 5, generator=torch.Generator().manual_seed(3))
    weights = heedful.scaled_dot_product_attention(query, key, value, masks.window(3)).weights
    picture = picture_of(Reading("near", "the cat", TOKENS, (weights,), causal=True), layer=0, head=1)
    assert [row.others + len(row.links) for row in picture.rows] == [1, 2, *[3] * (len(TOKENS) - 2)]
    nats = weights.entropy()[0, 1]
    expected = nats[2:] / math.log(3)
    assert [row.entropy for row in picture.rows[2:]] == pytest.approx(expected.tolist(), abs=1e-6)
    assert picture.rows[0].entropy == 0


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"layer": 3}, "layer: there is no layer 3. random has 3 layers, numbered 0 to 2."),
        ({"layer": -1}, "layer: there is no layer -1. random has 3 layers, numbered 0 to 2."),
        ({"head": 2}, "head: there is no head 2. random has 2 heads, numbered 0 to 1."),
        (
            {"token": "the"},
            "token: 'the' is spelled by tokens 1, 4 and 11. Give the number of the one you mean.",
        ),
        (
            {"token": 14},
            "token: there is no token 14. The tokens are 0 [CLS], 1 the, 2 cat, 3 saw, 4 the, 5 cat, 6 ,, 7 un, "
            "8 know, 9 n, 10 to, 11 the, 12 dog, 13 [SEP].",
        ),
    ],
)
def test_a_choice_that_is_not_there_is_refused(choice, message):
    with pytest.raises(BadChoice) as caught:
        picture_of(random_reading(causal=False), **choice)
    assert str(caught.value) == message
    assert caught.value.name == next(iter(choice))


def test_tokens_are_found_by_number_or_spelling():
    tokens = tokens_of("The", "cat", "the", "7", "Dog")
    assert find_token(tokens, 3) == find_token(tokens, "3") == find_token(tokens, "7") == 3
    assert find_token(tokens, "The") == 0
    assert find_token(tokens, "the") == 2
    assert find_token(tokens, "dog") == 4
    with pytest.raises(BadChoice) as caught:
        find_token(tokens, "THE")
    assert caught.value.problem == "'THE' is spelled by tokens 0 and 2. Give the number of the one you mean."


def test_a_long_text_lists_its_first_tokens_only():
    with pytest.raises(BadChoice) as caught:
        find_token(tokens_of(*"abcdefghijklmnopqrstuvwxyz"), "dog")
    assert str(caught.value) == (
        "token: there is no token 'dog'. The tokens are 0 a, 1 b, 2 c, 3 d, 4 e, 5 f, 6 g, 7 h, 8 i, 9 j, 10 k, 11 l, "
        "12 m, 13 n, 14 o, 15 p, 16 q, 17 r, 18 s, 19 t, and so on to 25."
    )


def test_json_is_the_picture_in_plain_values():
    picture = picture_of(cat_reading())
    found = to_json(picture)
    assert list(found) == ["schema", *asdict(picture)]
    assert found["schema"] == SCHEMA == "heedful.see/2"
    assert found["tokens"][3] == {
        "text": "sleep",
        "id": 3,
        "start": 8,
        "stop": 13,
        "special": False,
        "continues": False,
    }
    assert found["choice"] == {
        "layer": 1, "head": 1, "query": 6, "link": {"query": 6, "key": 2, "weight": 0.650753},
        "kind": "words that are not neighbors", "layer_given": False, "head_given": False, "token_given": False,
    }  # fmt: skip
    assert set(found["heads"][1][2]) == {
        *("layer", "head", "label", "letter", "score", "chance", "support", "entropy"),
    }
    assert (found["sink_set_aside"], found["following"]) == (False, [])
    expecting = replace(cat_reading(), following=(Following(" far", 0.75), Following(".", 0.125)))
    assert to_json(picture_of(expecting))["following"] == [
        {"text": " far", "probability": 0.75},
        {"text": ".", "probability": 0.125},
    ]
    assert found["matrix"][6][2] == found["looks_at"][2] == 0.650753
    assert found["rows"][6]["links"][0] == {"query": 6, "key": 2, "weight": 0.650753}
