"""A model reads a text: its tokens, spelled as the text spells them, and every layer's weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from heedful import Weights, backends, masks

NUM_FOLLOWING = 5


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
class Following:
    """A token that may follow the text, and how likely the model finds it."""

    text: str
    probability: float


@dataclass(frozen=True)
class Reading:
    """A text as one model read it.

    Attributes:
        model: Name of the model.
        text: The text.
        tokens: Its L tokens.
        weights: Of each layer, the weights, (1, H, L, L).
        causal: Whether a token sees only itself and the tokens before it.
        following: What the model expects after the text, likeliest first; empty if it predicts nothing.
        sink_set_aside: Whether `weights` are without the first token.
    """

    model: str
    text: str
    tokens: tuple[Token, ...]
    weights: tuple[Weights, ...]
    causal: bool
    following: tuple[Following, ...] = ()
    sink_set_aside: bool = False

    def without_sink(self) -> "Reading":
        """The same with the first token, a sink of attention in many models, set aside.

        Its weight is shared out among the other keys in proportion, as if nobody could see it. What the model made of
        the text stays as it was.

        Raises:
            TextRefused: The text has no other token.

        Cost: nothing; the weights stay lazy.
        """
        if len(self.tokens) < 2:
            raise TextRefused(f"{self.text[:40]!r} is one token; set aside, it leaves nothing to look at.")
        weights = tuple(_without_first_key(each) for each in self.weights)
        return replace(self, weights=weights, sink_set_aside=True)


def _without_first_key(weights: Weights) -> Weights:
    call = weights._call
    rule = masks.padding(torch.arange(weights.shape[-1], device=weights.device)[None] > 0)
    call = replace(call, mask=rule if call.mask is None else call.mask & rule)
    return Weights(call, backends.choose(call, "auto"), weights._batch_shape, weights._head_shape)


class TextRefused(ValueError):
    """The model can't read this text."""


@dataclass(frozen=True)
class Reader:
    """A loaded model with its tokenizer.

    Attributes:
        name: Name of the model in the catalogue.
        model: From token ids (1, L) to an answer whose `weights` are those of each layer, and whose `logits`, if it
            has any, end with those of the token after the text, (1, ..., vocabulary).
        tokenizer: A `tokenizers.Tokenizer` that neither cuts nor pads.
        max_tokens: The most tokens that the model can read, special ones included.
        causal: Whether a token sees only itself and the tokens before it. None: the weights will tell.
        options: More arguments for the model.
    """

    name: str
    model: nn.Module
    tokenizer: Any
    max_tokens: int
    causal: bool | None
    options: Mapping[str, Any] = field(default_factory=dict)

    def tokenize(self, text: str) -> tuple[Token, ...]:
        """The tokens of a text. A mark that the text itself spells out, as in "a [SEP] b", is special too.

        Some tokenizers take a whole text for one word; white space parts words all the same.
        """
        added = self.tokenizer.get_added_tokens_decoder()
        encoding = self.tokenizer.encode(text)
        words = [None, *encoding.word_ids]
        tokens = []
        for i, (token_id, name) in enumerate(zip(encoding.ids, encoding.tokens, strict=True)):
            start, stop = encoding.offsets[i]
            special = token_id in added and added[token_id].special and name != "[UNK]"
            spelled = name if special or start == stop else text[start:stop]
            same_word = words[i + 1] is not None and words[i + 1] == words[i]
            continues = same_word and not (spelled[:1].isspace() or tokens[-1].text[-1:].isspace())
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
            answer = self.model(ids, **self.options)
        weights = tuple(answer.weights)
        causal = _is_causal(weights) if self.causal is None else self.causal
        return Reading(self.name, text, tokens, weights, causal, self._following(answer))

    def _following(self, answer: Any) -> tuple[Following, ...]:
        logits = getattr(answer, "logits", None)
        if logits is None:
            return ()
        likely = logits[0, -1].float().softmax(-1).topk(min(NUM_FOLLOWING, logits.shape[-1]))
        return tuple(
            Following(self._spelled(number), probability)
            for number, probability in zip(likely.indices.tolist(), likely.values.tolist(), strict=True)
        )

    def _spelled(self, number: int) -> str:
        """A token by itself; a part of a character goes by its name in the vocabulary."""
        text = self.tokenizer.decode([number], skip_special_tokens=False)
        return text if text and "\ufffd" not in text else self.tokenizer.id_to_token(number) or str(number)


def _is_causal(weights: tuple[Weights, ...]) -> bool:
    return all(not bool(each[0, :, 0, 1:].any()) for each in weights)
