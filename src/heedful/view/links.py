"""Which links are worth showing."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from heedful.heads import is_mark
from heedful.models.reading import Token


class Words:
    """The words of a text, as far as links between its tokens are concerned."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.is_text = torch.tensor([not is_mark(token) for token in tokens])
        continued = [token.continues for token in tokens[1:]] + [False]
        whole = [not (token.continues or more) for token, more in zip(tokens, continued, strict=True)]
        self.is_word = self.is_text & torch.tensor(whole) & (not by_character(tokens))
        self.number = torch.tensor([not token.continues for token in tokens]).cumsum(0)

    def apart(self, query: Tensor, key: Tensor) -> Tensor:
        """How many words lie between two tokens, counting the second; 0 within a word."""
        return (self.number[query] - self.number[key]).abs()

    def are_words(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether both tokens are whole words, neither pieces of one nor marks."""
        return self.is_word[query] & self.is_word[key]


def by_character(tokens: Sequence[Token]) -> bool:
    """Whether tokens are single characters: a letter by itself is no word, and that one continues says little."""
    of_text = [token for token in tokens if not token.special]
    return all(len(token.text) == 1 for token in of_text) and any(token.continues for token in of_text)


Rule = Callable[[Words, Tensor, Tensor], Tensor]

# From the most telling kind of link down.
KINDS: dict[str, Rule] = {
    "words that are not neighbors": lambda words, i, j: words.are_words(i, j) & (words.apart(i, j) > 1),
    "words": lambda words, i, j: words.are_words(i, j) & (words.apart(i, j) > 0),
    "pieces of words": lambda words, i, j: words.is_text[i] & words.is_text[j] & (i != j),
    "a word and a mark": lambda words, i, j: words.is_text[i] & (i != j),
    "two tokens": lambda words, i, j: i != j,
    "tokens": lambda words, i, j: torch.ones_like(i, dtype=torch.bool),
}


def telling(values: Tensor, keys: Tensor, queries: Tensor, words: Words) -> tuple[str, Tensor]:
    """Score links by how much they are worth showing.

    Only links of the most telling kind that occurs count. Their score is the weight times log2(2 + tokens apart), so
    that a link across the text beats a slightly stronger one next door.

    Args:
        values: Weights, (..., L, k); 0 for links that are not to count.
        keys: Their keys, (..., L, k), -1 where there is none.
        queries: Number of each row's token, (L,).
        words: The words of the text.

    Returns:
        The name of the kind, a key of `KINDS`, and the scores (..., L, k), 0 for links that don't count.
    """
    query = queries[:, None].expand_as(keys)
    there = (keys >= 0) & (values > 0)
    key = keys.clamp(min=0)
    scores = values * torch.log2(2.0 + (query - key).abs())
    counted = {kind: counts(words, query, key) & there for kind, counts in KINDS.items()}
    kind = next((kind for kind in KINDS if counted[kind].any()), "tokens")
    return kind, torch.where(counted[kind], scores, 0)
