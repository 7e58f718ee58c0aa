"""A model reads a text: its tokens, spelled as the text spells them, and every layer's weights."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from heedful import Weights


@dataclass(frozen=True)
class Token:
    """One token of a text.

    Attributes:
        text: The characters of the text behind it; for a special token its name, such as `[CLS]`.
        id: Its number in the model's vocabulary.
        start: Where it starts in the text, in characters.
        stop: Where it ends. Both are 0 for a special token that the model added.
        special: Whether it is a mark of the model's rather than text.
        continues: Whether it continues the word of the token before it.
    """

    text: str
    id: int
    start: int
    stop: int
    special: bool
    continues: bool


@dataclass(frozen=True)
class Reading:
    """A text as one model read it.

    Attributes:
        model: Name of the model.
        text: The text.
        tokens: Its L tokens.
        weights: Of each layer, the weights, (1, H, L, L).
        causal: Whether a token sees only itself and the tokens before it.
    """

    model: str
    text: str
    tokens: tuple[Token, ...]
    weights: tuple[Weights, ...]
    causal: bool


class TextRefused(ValueError):
    """The model can't read this text."""


@dataclass(frozen=True)
class Reader:
    """A loaded model with its tokenizer.

    Attributes:
        name: Name of the model in the catalogue.
        model: From token ids (1, L) to an answer whose `weights` are those of each layer.
        tokenizer: A `tokenizers.Tokenizer` that neither cuts nor pads.
        max_tokens: The most tokens that the model can read, special ones included.
        causal: Whether a token sees only itself and the tokens before it.
    """

    name: str
    model: nn.Module
    tokenizer: Any
    max_tokens: int
    causal: bool

    def tokenize(self, text: str) -> tuple[Token, ...]:
        """The tokens of a text. A mark that the text itself spells out, as in "a [SEP] b", is special too."""
        added = self.tokenizer.get_added_tokens_decoder()
        encoding = self.tokenizer.encode(text)
        words = [None, *encoding.word_ids]
        tokens = []
        for i, (token_id, name) in enumerate(zip(encoding.ids, encoding.tokens, strict=True)):
            start, stop = encoding.offsets[i]
            special = token_id in added and added[token_id].special and name != "[UNK]"
            spelled = name if special or start == stop else text[start:stop]
            continues = words[i + 1] is not None and words[i + 1] == words[i]
            tokens.append(Token(spelled, token_id, start, stop, special, continues))
        return tuple(tokens)

    def read(self, text: str) -> Reading:
        """Run the model on a text and keep the weights of every layer.

        Raises:
            TextRefused: The text gives no token, or more than `max_tokens`.

        Cost:
            One run of the model. The weights are not built.
        """
        tokens = self.tokenize(text)
        if all(token.special for token in tokens):
            raise TextRefused(
                f"{text[:40]!r} holds nothing that {self.name} reads as text; give it some words."
            )
        if len(tokens) > self.max_tokens:
            fits = tokens[self.max_tokens - 1].start
            raise TextRefused(
                f"{len(tokens)} tokens, special ones included, and {self.name} reads at most {self.max_tokens}. "
                f"Its limit is reached after {fits} of {len(text)} characters: shorten the text, or give it in parts."
            )
        ids = torch.tensor([[token.id for token in tokens]])
        with torch.no_grad():
            weights = tuple(self.model(ids).weights)
        return Reading(self.name, text, tokens, weights, self.causal)
