"""Make the picture of a reading: ask every head its questions, choose one head, and look at it closely."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from heedful import Weights
from heedful.heads import HeadClass, Kinds, classify, question_about
from heedful.models.reading import Reading, Token
from heedful.reductions import Entropy, TopK
from heedful.view.links import Words, telling
from heedful.view.picture import Choice, HeadSummary, Link, Picture, Row
from heedful.view.summary import PLACES, Places, Visible

NUM_LINKS = 6
LINKS_PER_ROW = 8
LINKS_SEARCHED = 16
LONGEST_MATRIX = 512

Summaries = tuple[tuple[HeadSummary, ...], ...]


class BadChoice(ValueError):
    """A layer, head or token that the reading does not have.

    Attributes:
        name: What was chosen: "layer", "head" or "token".
        problem: What is wrong with the choice, and what can be chosen.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name, self.problem = name, problem


class Answers(NamedTuple):
    """What all N layers of H heads answered.

    `classes[layer][head]`; `entropy` (N, H, L) in shares of the largest possible, `seen` (N, H, L) keys each token can
    see, `values` and `keys` (N, H, L, k) of the strongest links; `question` says which tokens a summary goes by.
    """

    classes: tuple[tuple[HeadClass, ...], ...]
    entropy: Tensor
    seen: Tensor
    values: Tensor
    keys: Tensor
    question: Kinds


def picture_of(
    reading: Reading, layer: int | None = None, head: int | None = None, token: int | str | None = None
) -> Picture:
    """Make the picture of a reading.

    What is left open is chosen by the most telling link (`heedful.view.links.telling`) among what is possible.

    Args:
        reading: What a model made of a text.
        layer: Layer of the head to look at closely.
        head: The head to look at closely.
        token: The token to look from, by number or as it is spelled.

    Raises:
        BadChoice: There is no such layer, head or token, or several tokens are spelled like this.

    Cost:
        One pass over the weights of each layer and O(L) memory; the chosen head's matrix up to 512 tokens.
    """
    num_layers, num_heads = len(reading.weights), reading.weights[0].shape[1]
    _check_number("layer", layer, num_layers, reading.model)
    _check_number("head", head, num_heads, reading.model)
    query = None if token is None else find_token(reading.tokens, token)
    answers = _ask(reading)
    choice = _choose(reading, answers, (layer, head, query))
    return _draw(reading, answers, choice)


def find_token(tokens: Sequence[Token], wanted: int | str) -> int:
    """The number of a token that is given by its number or its spelling; upper and lower case differ if they can.

    Raises:
        BadChoice: No token, or more than one.
    """
    number = int(wanted) if isinstance(wanted, int) or wanted.isdecimal() else -1
    if 0 <= number < len(tokens):
        return number
    spelled = [token.text.strip() for token in tokens]
    found = [i for i, text in enumerate(spelled) if text == str(wanted).strip()]
    if not found:
        found = [i for i, text in enumerate(spelled) if text.lower() == str(wanted).strip().lower()]
    if len(found) > 1:
        listed = f"{', '.join(map(str, found[:-1]))} and {found[-1]}"
        raise BadChoice(
            "token", f"{wanted!r} is spelled by tokens {listed}. Give the number of the one you mean."
        )
    if not found:
        some = ", ".join(f"{i} {text}" for i, text in enumerate(spelled[:20]))
        more = f", and so on to {len(tokens) - 1}" if len(tokens) > 20 else ""
        raise BadChoice("token", f"there is no token {wanted!r}. The tokens are {some}{more}.")
    return found[0]


def _check_number(name: str, got: int | None, count: int, model: str) -> None:
    if got is not None and not 0 <= got < count:
        raise BadChoice(
            name, f"there is no {name} {got}. {model} has {count} {name}s, numbered 0 to {count - 1}."
        )


def _ask(reading: Reading) -> Answers:
    question = question_about(reading.tokens)
    k = min(len(reading.tokens), LINKS_SEARCHED)
    answers = [weights.reduce(Entropy(), TopK(k), Visible(), question) for weights in reading.weights]
    entropy, seen = (torch.cat([answer[i] for answer in answers]) for i in (0, 2))
    return Answers(
        classes=tuple(tuple(classify(weights, reading.tokens)) for weights in reading.weights),
        entropy=torch.where(seen > 1, entropy / seen.clamp(min=2).log(), 0).clamp(0, 1),
        seen=seen,
        values=torch.cat([answer[1].values for answer in answers]),
        keys=torch.cat([answer[1].indices for answer in answers]),
        question=question,
    )


def _choose(reading: Reading, answers: Answers, given: tuple[int | None, ...]) -> Choice:
    """The most telling link among what is possible. Heads that go by position are left out if any other is possible."""
    open_to = tuple(slice(None) if number is None else slice(number, number + 1) for number in given)
    queries = torch.arange(len(reading.tokens))[open_to[2]]
    values, keys = _apart_from_sink(answers)[open_to], answers.keys[open_to]
    if given[2] is not None and not (keys >= 0).any():
        raise BadChoice("token", f"token {given[2]} sees nothing but the first, which is set aside.")
    by_position = torch.tensor([[each.letter in "PNU" for each in layer] for layer in answers.classes])
    by_position = by_position[open_to[:2]]
    if not by_position.all():
        values = values.masked_fill(by_position[..., None, None], 0)
    kind, scores = telling(values, keys, queries, Words(reading.tokens))
    best = _place_of(int(scores.argmax()), scores.shape)
    at = [int(i) + (part.start or 0) for i, part in zip(best, open_to, strict=False)]
    link = Link(at[2], int(keys[best]), float(answers.values[open_to][best]))
    return Choice(at[0], at[1], at[2], link, kind, *(number is not None for number in given))


def _apart_from_sink(answers: Answers) -> Tensor:
    """The values, without links to the first token if it is a sink of some head: those tell nothing of the text."""
    if any(each.label == "first token" for layer in answers.classes for each in layer):
        return answers.values.masked_fill(answers.keys == 0, 0)
    return answers.values


def _draw(reading: Reading, answers: Answers, choice: Choice) -> Picture:
    length = len(reading.tokens)
    layer = reading.weights[choice.layer]
    weights = layer[0, choice.head]
    this_token = torch.zeros(length)
    this_token[choice.query] = 1
    places, chance = _places(layer[:, choice.head : choice.head + 1], answers.question)
    return Picture(
        model=reading.model,
        text=reading.text,
        causal=reading.causal,
        sink_set_aside=reading.sink_set_aside,
        tokens=reading.tokens,
        following=reading.following,
        heads=_summaries(answers),
        choice=choice,
        places=places,
        chance=chance,
        looks_at=tuple(layer[0, choice.head, choice.query].tolist()),
        seen_by=tuple((weights @ this_token).tolist()),
        rows=_rows(answers, choice),
        links=_strongest(reading, answers, choice),
        matrix=tuple(map(tuple, weights.full().tolist())) if length <= LONGEST_MATRIX else None,
    )


def _summaries(answers: Answers) -> Summaries:
    """Every head in summary."""
    counted = (torch.tensor(answers.question.counted) & (answers.seen > 1)).to(answers.entropy)
    entropy = ((answers.entropy * counted).sum(-1) / counted.sum(-1).clamp(min=1)).tolist()
    return tuple(
        tuple(HeadSummary(layer, head, *found, entropy[layer][head]) for head, found in enumerate(heads))
        for layer, heads in enumerate(answers.classes)
    )


def _places(weights: Weights, question: Kinds) -> tuple[dict[str, float], dict[str, float]]:
    """The shares of one head's weight by place, and the same for even weights."""
    sums = weights.reduce(Places(question.ids, question.separators, question.counted))[0][0, 0]
    mine, even = (sums / sums[1].sum().clamp(min=1)).tolist()
    return dict(zip(PLACES, mine, strict=True)), dict(zip(PLACES, even, strict=True))


def _rows(answers: Answers, choice: Choice) -> tuple[Row, ...]:
    at = choice.layer, choice.head
    values = answers.values[at][:, :LINKS_PER_ROW].tolist()
    keys = answers.keys[at][:, :LINKS_PER_ROW].tolist()
    rows = []
    for query, (entropy, seen) in enumerate(
        zip(answers.entropy[at].tolist(), answers.seen[at].tolist(), strict=True)
    ):
        pairs = zip(keys[query], values[query], strict=True)
        links = tuple(Link(query, key, value) for key, value in pairs if key >= 0)
        rest = max(0.0, 1 - sum(link.weight for link in links))
        rows.append(Row(query, entropy, links, rest, int(seen) - len(links)))
    return tuple(rows)


def _strongest(reading: Reading, answers: Answers, choice: Choice) -> tuple[Link, ...]:
    """The strongest links of the chosen head, of the most telling kind that it has, and above even weights."""
    at = choice.layer, choice.head
    values, keys = _apart_from_sink(answers)[at], answers.keys[at]
    _, scores = telling(values, keys, torch.arange(len(values)), Words(reading.tokens))
    best = values.where(scores > 0, 0).flatten().topk(min(NUM_LINKS, values.numel()))
    links = []
    for index, weight in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        query, column = _place_of(index, values.shape)
        if weight > 1 / len(values):
            links.append(Link(query, int(keys[query, column]), weight))
    return tuple(links)


def _place_of(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Where a flat index lies. `torch.unravel_index` would load sympy for it, which takes half a second."""
    place = []
    for size in reversed(shape):
        index, at = divmod(index, size)
        place.append(at)
    return tuple(reversed(place))
