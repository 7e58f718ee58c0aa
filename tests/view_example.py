"""Small readings with known weights, to draw and to ask."""

import torch
from torch import Tensor

import heedful
from heedful import masks
from heedful.models.reading import Reading, Token


def tokens_of(*texts: str) -> tuple[Token, ...]:
    """Tokens of a text with one space between words: "[...]" is special, "##..." continues a word."""
    tokens, at, numbers = [], -1, {}
    for text in texts:
        special, continues = text.startswith("[") and text.endswith("]"), text.startswith("##")
        number = numbers.setdefault(text, len(numbers))
        if special:
            tokens.append(Token(text, number, 0, 0, special=True, continues=False))
            continue
        spelled = text.removeprefix("##")
        start = at if continues else at + 1
        at = start + len(spelled)
        tokens.append(Token(spelled, number, start, at, special=False, continues=continues))
    return tuple(tokens)


def reading_of(tokens: tuple[Token, ...], weights: Tensor, causal: bool = False) -> Reading:
    """A reading whose layers have these weights, (layers, H, L, L), all of them above 0 where they may be."""
    zeros = weights.new_zeros(1, *weights.shape[1:3], 1)
    mask = masks.causal() if causal else None
    layers = tuple(
        heedful.scaled_dot_product_attention(zeros, zeros, zeros, mask, attn_bias=layer[None].log()).weights
        for layer in weights
    )
    text = "".join(
        ("" if token.continues else " ") + token.text for token in tokens if not token.special
    ).strip()
    return Reading("example", text, tokens, layers, causal)


def cat_reading() -> Reading:
    """Two layers of three heads: previous, next, first; broad, linking, self. No two weights of a row are equal."""
    tokens = tokens_of("[CLS]", "The", "cat", "sleep", "##s", "as", "it", "is", "tired", ".", "[SEP]")
    n = len(tokens)
    first, linking = torch.zeros(n, n), torch.zeros(n, n)
    first[:, 0] = 1
    linking[:, 0] = 0.6
    linking[6, [0, 2, 3]] = torch.tensor([0.1, 0.7, 0.05])
    linking[8, [0, 2, 3, 4]] = torch.tensor([0.2, 0.5, 0.1, 0.08])
    before, after = torch.diag(torch.ones(n - 1), -1), torch.diag(torch.ones(n - 1), 1)
    heads = [before, after, first, torch.zeros(n, n), linking, torch.eye(n)]
    spread = 1 + 0.01 * torch.arange(n)
    spread = spread / spread.sum()
    weights = torch.stack([head * 0.9 for head in heads])
    weights = weights + (1 - weights.sum(-1, keepdim=True)) * spread
    return reading_of(tokens, weights.reshape(2, 3, n, n))
