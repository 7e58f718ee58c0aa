"""A small decoder, built from heedful's modules: what `heedful train` trains."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn

from heedful import Weights, masks
from heedful.nn import KVCache, MultiHeadAttention
from heedful.positions import Alibi, Learned, Rotary, Sinusoidal
from heedful.reductions import Reduction
from heedful.train.recipe import Recipe


class Decoded(NamedTuple):
    """What `Decoder` returns.

    Attributes:
        logits: Scores of the next token, (B, L, vocabulary).
        weights: Of each layer, the weights, (B, H, L, S), never built.
    """

    logits: Tensor
    weights: list[Weights]


class Block(nn.Module):
    """Attention, then two linear maps; each reads a normalized copy and adds to what came in (pre-norm).

    Source: Xiong et al., "On Layer Normalization in the Transformer Architecture", 2020: with the norm first,
    deep stacks train from the start.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        width, heads = recipe.embed_dim, recipe.num_heads
        position = {"rotary": Rotary(), "alibi": Alibi(heads)}.get(recipe.position)
        self.attention_norm = nn.LayerNorm(width)
        self.attention = MultiHeadAttention(
            width,
            heads,
            num_kv_heads=recipe.num_kv_heads,
            dropout=recipe.dropout,
            position=position,
            qk_norm=recipe.qk_norm,
        )
        self.feedforward_norm = nn.LayerNorm(width)
        self.feedforward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(recipe.dropout)
        )

    def forward(
        self, x: Tensor, mask: masks.Mask, cache: KVCache | None, reduce: Sequence[Reduction]
    ) -> tuple[Tensor, Weights]:
        """From (B, L, width) to the same shape, and the weights."""
        output, weights = self.attention(self.attention_norm(x), mask=mask, cache=cache, reduce=reduce)
        x = x + output
        return x + self.feedforward(self.feedforward_norm(x)), weights


class Decoder(nn.Module):
    """Predicts each next token from those before it. The embedding also serves as the output layer.

    Args:
        vocabulary: Number of different ids.
        recipe: Its sizes and its position encoding.
    """

    def __init__(self, vocabulary: int, recipe: Recipe) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, recipe.embed_dim)
        tables = {"learned": Learned(recipe.context, recipe.embed_dim), "sinusoidal": Sinusoidal()}
        self.position = tables.get(recipe.position)
        # Sinusoids of size 1 would drown embeddings of 0.02: these grow by the root of the width (2017, 3.4).
        self.embedding_scale = recipe.embed_dim**0.5 if recipe.position == "sinusoidal" else 1.0
        self.blocks = nn.ModuleList(Block(recipe) for _ in range(recipe.num_layers))
        self.norm = nn.LayerNorm(recipe.embed_dim)
        self._start_small(recipe.num_layers)

    def _start_small(self, num_layers: int) -> None:
        """Matrices from a normal distribution of 0.02, narrower where blocks add to the stream (GPT-2's way)."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                adds = name.endswith(("out_proj.weight", "feedforward.2.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * num_layers) ** 0.5 if adds else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if self.embedding_scale != 1.0:
            nn.init.normal_(self.embedding.weight, std=1 / self.embedding_scale)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        mask: masks.Mask | None = None,
        *,
        positions: Int[Tensor, "batch length"] | int = 0,
        caches: Sequence[KVCache] | None = None,
        reduce: Sequence[Reduction] = (),
    ) -> Decoded:
        """Score the next token after each position.

        Args:
            tokens: Ids.
            mask: Who may see whom; None: every token sees itself and those before it.
            positions: Where tokens stand, or where the first one stands; for tables of positions only.
            caches: One per layer, for generation.
            reduce: What to ask of every layer's weights while they pass.

        Returns:
            Logits (B, L, vocabulary) and the weights of each layer.
        """
        mask = masks.causal() if mask is None else mask
        x = self.embedding(tokens) * self.embedding_scale
        if self.position is not None:
            x = self.position.embed(x, positions)
        weights = []
        for number, block in enumerate(self.blocks):
            x, layer = block(x, mask, None if caches is None else caches[number], reduce)
            weights.append(layer)
        return Decoded(self.norm(x) @ self.embedding.weight.T, weights)

    @torch.no_grad()
    def generate(
        self,
        tokens: Int[Tensor, "batch length"],
        count: int,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "batch longer"]:
        """Continue some tokens, one at a time; keys and values of earlier tokens are kept, not computed again.

        Args:
            tokens: At least one id per row.
            count: How many to add.
            temperature: Divides the logits; 0 takes the likeliest token every time.
            generator: Where chance comes from; None: torch's own.

        Returns:
            The tokens given and those added, (B, L + count).

        Cost:
            One run over the given tokens, then one token at a time against a cache of L + count keys.
        """
        caches = [KVCache() for _ in self.blocks]
        new = tokens
        for _ in range(count):
            start = tokens.shape[1] - new.shape[1]
            logits = self(new, positions=start, caches=caches).logits[:, -1]
            if temperature == 0:
                new = logits.argmax(-1, keepdim=True)
            else:
                chances = (logits / temperature).softmax(-1)
                new = torch.multinomial(chances, 1, generator=generator)
            tokens = torch.cat([tokens, new], 1)
        return tokens
