"""Make the picture of a reading: ask every head its questions, choose one head, and look at it closely."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.models.reading import Reading, Token
from heedful.reductions import Entropy, TopK
from heedful.view.links import Words, is_mark, telling
from heedful.view.picture import Choice, HeadSummary, Link, Picture, Row
from heedful.view.summary import PLACES, Places, letter_of

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

    `entropy` (N, H, L) in shares of the largest possible, `values` and `keys` (N, H, L, k) of the strongest links,
    `places` (N, H, 2, 8) in shares: of the weights, and by chance.
    """

    entropy: Tensor
    values: Tensor
    keys: Tensor
    places: Tensor


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
    heads, chance = _summaries(reading, answers)
    choice = _choose(reading, answers, heads, (layer, head, query))
    return _draw(reading, answers, heads, chance, choice)


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
    tokens, length = reading.tokens, len(reading.tokens)
    places = Places(
        ids=tuple(token.id for token in tokens),
        special=tuple(is_mark(token) for token in tokens),
        counted=_counted(tokens),
    )
    k = min(length, LINKS_SEARCHED)
    answers = [weights.reduce(Entropy(), TopK(k), places) for weights in reading.weights]
    entropy = torch.cat([answer[0] for answer in answers])
    most = torch.log(_visible(reading)).clamp(min=torch.finfo(entropy.dtype).tiny)
    return Answers(
        entropy=(entropy / most).clamp(0, 1),
        values=torch.cat([answer[1].values for answer in answers]),
        keys=torch.cat([answer[1].indices for answer in answers]),
        places=torch.cat([answer[2] for answer in answers]) / sum(places.counted),
    )


def _counted(tokens: Sequence[Token]) -> tuple[bool, ...]:
    """Which tokens a head's summary goes by: those of the text, or all if there are only special ones."""
    only_special = all(token.special for token in tokens)
    return tuple(only_special or not token.special for token in tokens)


def _visible(reading: Reading) -> Tensor:
    """How many tokens each token can see, (L,) float."""
    length = len(reading.tokens)
    return torch.arange(1.0, length + 1) if reading.causal else torch.full((length,), float(length))


def _choose(reading: Reading, answers: Answers, heads: Summaries, given: tuple[int | None, ...]) -> Choice:
    """The most telling link among what is possible. Heads that go by position are left out if any other is possible."""
    open_to = tuple(slice(None) if number is None else slice(number, number + 1) for number in given)
    queries = torch.arange(len(reading.tokens))[open_to[2]]
    values, keys = answers.values[open_to], answers.keys[open_to]
    by_position = torch.tensor([[head.letter in "PNU" for head in layer] for layer in heads])[open_to[:2]]
    if not by_position.all():
        values = values.masked_fill(by_position[..., None, None], 0)
    kind, scores = telling(values, keys, queries, Words(reading.tokens))
    best = _place_of(int(scores.argmax()), scores.shape)
    at = [int(i) + (part.start or 0) for i, part in zip(best, open_to, strict=False)]
    link = Link(at[2], int(keys[best]), float(values[best]))
    return Choice(at[0], at[1], at[2], link, kind, *(number is not None for number in given))


def _draw(
    reading: Reading, answers: Answers, heads: Summaries, chance: dict[str, float], choice: Choice
) -> Picture:
    length = len(reading.tokens)
    layer = reading.weights[choice.layer]
    weights = layer[0, choice.head]
    this_token = torch.zeros(length)
    this_token[choice.query] = 1
    return Picture(
        model=reading.model,
        text=reading.text,
        causal=reading.causal,
        tokens=reading.tokens,
        heads=heads,
        chance=chance,
        choice=choice,
        looks_at=tuple(layer[0, choice.head, choice.query].tolist()),
        seen_by=tuple((weights @ this_token).tolist()),
        rows=_rows(reading, answers, choice),
        links=_strongest(reading, answers, choice),
        matrix=tuple(map(tuple, weights.full().tolist())) if length <= LONGEST_MATRIX else None,
    )


def _summaries(reading: Reading, answers: Answers) -> tuple[Summaries, dict[str, float]]:
    """Every head in summary, and the shares of the places by chance."""
    counted = torch.tensor(_counted(reading.tokens))
    entropy = answers.entropy[..., counted].mean(-1).tolist()
    shares = answers.places.tolist()
    chance = dict(zip(PLACES, shares[0][0][1], strict=True))
    repeats = _repeats(reading)
    summaries = []
    for layer, heads in enumerate(shares):
        row = []
        for head, (mine, _) in enumerate(heads):
            places = dict(zip(PLACES, mine, strict=True))
            same_share = places["same"] * int(counted.sum()) / repeats if repeats > 1 else 0.0
            letter = letter_of(places, chance, entropy[layer][head], same_share)
            row.append(HeadSummary(layer, head, letter, entropy[layer][head], places))
        summaries.append(tuple(row))
    return tuple(summaries), chance


def _repeats(reading: Reading) -> int:
    """How many of the text's tokens see the same token elsewhere."""
    in_text, so_far, repeats = Counter(token.id for token in reading.tokens), set[int](), 0
    for token in reading.tokens:
        seen = token.id in so_far if reading.causal else in_text[token.id] > 1
        repeats += seen and not token.special
        so_far.add(token.id)
    return repeats


def _rows(reading: Reading, answers: Answers, choice: Choice) -> tuple[Row, ...]:
    at = choice.layer, choice.head
    values = answers.values[at][:, :LINKS_PER_ROW].tolist()
    keys = answers.keys[at][:, :LINKS_PER_ROW].tolist()
    rows = []
    for query, (entropy, seen) in enumerate(
        zip(answers.entropy[at].tolist(), _visible(reading).tolist(), strict=True)
    ):
        pairs = zip(keys[query], values[query], strict=True)
        links = tuple(Link(query, key, value) for key, value in pairs if key >= 0)
        rest = max(0.0, 1 - sum(link.weight for link in links))
        rows.append(Row(query, entropy, links, rest, int(seen) - len(links)))
    return tuple(rows)


def _strongest(reading: Reading, answers: Answers, choice: Choice) -> tuple[Link, ...]:
    """The strongest links of the chosen head, of the most telling kind that it has, and above even weights."""
    values, keys = answers.values[choice.layer, choice.head], answers.keys[choice.layer, choice.head]
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
