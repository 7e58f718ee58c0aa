"""One picture of a reading: everything that is drawn, and nothing about how."""

from dataclasses import asdict, dataclass
from typing import Any

from heedful.models.reading import Following, Token

SCHEMA = "heedful.see/2"


@dataclass(frozen=True)
class Link:
    """One weight: how much `query` looks at `key`, both token numbers."""

    query: int
    key: int
    weight: float


@dataclass(frozen=True)
class HeadSummary:
    """Where one head looks, and how widely.

    Attributes:
        layer: Layer, counted from 0.
        head: Head, counted from 0.
        label: Its class on this text, a key of `heedful.heads.CLASSES`.
        letter: One letter for it.
        score: The share of its weight that the class goes by; see `heedful.heads.HeadClass`.
        chance: The same for even weights.
        support: How many tokens the score is a mean of.
        entropy: Mean over the text's tokens with a choice of the entropy of the row, as a share of the largest
            possible: 0 is one token, 1 is all alike.
    """

    layer: int
    head: int
    label: str
    letter: str
    score: float
    chance: float
    support: int
    entropy: float


@dataclass(frozen=True)
class Row:
    """What one token looks at in the chosen head.

    Attributes:
        query: The token.
        entropy: As a share of the largest possible.
        links: Its strongest links, strongest first.
        rest: The weight on all other tokens together.
        others: How many others it can see.
    """

    query: int
    entropy: float
    links: tuple[Link, ...]
    rest: float
    others: int


@dataclass(frozen=True)
class Choice:
    """Which head and token are looked at closely, and why.

    Attributes:
        layer: The head's layer.
        head: The head.
        query: The token.
        link: The link that decided.
        kind: What it links, a key of `heedful.view.links.KINDS`.
        layer_given: Whether the layer was asked for.
        head_given: Whether the head was asked for.
        token_given: Whether the token was asked for.
    """

    layer: int
    head: int
    query: int
    link: Link
    kind: str
    layer_given: bool
    head_given: bool
    token_given: bool


@dataclass(frozen=True)
class Picture:
    """One text, all heads in summary, one head in detail.

    Attributes:
        model: Name of the model.
        text: The text.
        causal: Whether a token sees only itself and the tokens before it.
        sink_set_aside: Whether the first token was taken out of all weights.
        tokens: The text's L tokens.
        following: What the model expects after the text, likeliest first; empty if it predicts nothing.
        heads: Summaries, `heads[layer][head]`.
        choice: The chosen head and token.
        places: The chosen head's mean share of weight on each of `heedful.view.summary.PLACES`; they sum to 1.
        chance: The same if every token looked at all it can see alike.
        looks_at: The chosen token's weights in the chosen head, L numbers.
        seen_by: The weight that each token gives the chosen token there, L numbers.
        rows: What each token looks at there, L rows.
        links: The strongest links there, between words that are not neighbors if there are any, strongest first.
        matrix: The chosen head's weights, L rows of L numbers, or None if the text is long.
    """

    model: str
    text: str
    causal: bool
    sink_set_aside: bool
    tokens: tuple[Token, ...]
    following: tuple[Following, ...]
    heads: tuple[tuple[HeadSummary, ...], ...]
    choice: Choice
    places: dict[str, float]
    chance: dict[str, float]
    looks_at: tuple[float, ...]
    seen_by: tuple[float, ...]
    rows: tuple[Row, ...]
    links: tuple[Link, ...]
    matrix: tuple[tuple[float, ...], ...] | None

    @property
    def summary(self) -> HeadSummary:
        """The chosen head's summary."""
        return self.heads[self.choice.layer][self.choice.head]


def to_json(picture: Picture) -> dict[str, Any]:
    """The picture as plain numbers, strings and lists.

    The keys are the attributes of `Picture` and of the classes it holds, with `schema` before them: its number
    changes when a key changes its meaning or goes. Weights are rounded to six decimals. Tokens are numbered from 0,
    and every `query`, `key` and index of a list of weights is such a number.
    """
    return {"schema": SCHEMA, **_plain(asdict(picture))}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return round(value, 6) if isinstance(value, float) else value
