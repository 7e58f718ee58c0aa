"""The module mistakes once more, in a module that loops over its heads.

`make("module-bias-lost")` gives a class whose instances make that mistake. Nothing here comes from
`heedful.checking`.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class Base(nn.Module):
    """Multi-head attention over three inputs, a mask in which True = may attend."""

    wrong: frozenset[str] = frozenset()

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.p = dropout
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        nn.init.zeros_(self.q_proj.bias)
        nn.init.zeros_(self.v_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend. The weights, (batch, heads, queries, keys), sum to 1 over the keys.

        In the mask, True means "may attend".
        """
        q, k, v = self.projected(query, key, value)
        parts, maps, logits = [], [], []
        for head in range(self.heads(q)):
            a, b, c = self.piece(q, head), self.piece(k, head), self.piece(v, head)
            scores = torch.bmm(a, b.transpose(1, 2)) / math.sqrt(a.size(-1))
            if mask is not None:
                keep = mask if mask.ndim < 4 else mask[:, min(head, mask.size(1) - 1)]
                scores = scores.masked_fill(~keep, -math.inf)
            weights = scores.softmax(-1)
            logits.append(scores)
            maps.append(weights)
            parts.append(torch.bmm(self.drop(weights), c))
        output = self.finish(self.joined(parts))
        return output, self.returned(maps, logits, parts)

    def heads(self, q: Tensor) -> int:
        return 1 if "heads-not-split" in self.wrong else self.num_heads

    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        wrong = self.wrong
        if "operands-memory-ignored" in wrong:
            key = value = query
        layers = [self.q_proj, self.k_proj, self.v_proj]
        if "operands-wrong-matrix" in wrong:
            layers[2] = self.k_proj
        done = [layer(x) for layer, x in zip(layers, (query, key, value), strict=True)]
        if "module-bias-lost" in wrong:
            done[2] = value @ self.v_proj.weight.t()
        if "operands-not-projected" in wrong:
            done[0] = query
        return done[0], done[1], done[2]

    def piece(self, x: Tensor, head: int) -> Tensor:
        size = x.size(-1) // self.num_heads
        if "heads-not-split" in self.wrong:
            return x
        if "heads-size-exchanged" in self.wrong:
            return x[..., head :: self.num_heads]
        if "heads-split-reshape" in self.wrong:
            return x.contiguous().view(x.size(0), self.num_heads, x.size(1), size)[:, head]
        return x[..., head * size : (head + 1) * size]

    def joined(self, parts: list[Tensor]) -> Tensor:
        if "heads-merge-reshape" in self.wrong:
            stacked = torch.stack(parts, 1)
            return stacked.view(stacked.size(0), stacked.size(2), -1)
        return torch.cat(parts, -1)

    def drop(self, weights: Tensor) -> Tensor:
        wrong = self.wrong
        if "dropout-in-eval" in wrong:
            return functional.dropout(weights, self.p or 0.3)
        if "dropout-missing" in wrong or not self.training:
            return weights
        if "dropout-without-rescale" in wrong:
            return weights * (torch.rand_like(weights) >= self.p)
        return functional.dropout(weights, self.p)

    def finish(self, context: Tensor) -> Tensor:
        if "module-output-missing" in self.wrong:
            return context
        if "module-output-twice" in self.wrong:
            return self.out_proj(self.out_proj(context))
        return self.out_proj(context)

    def returned(self, maps: list[Tensor], logits: list[Tensor], parts: list[Tensor]) -> Tensor:
        weights = torch.stack(maps, 1)
        if "weights-are-scores" in self.wrong:
            return torch.stack(logits, 1)
        if "weights-averaged" in self.wrong:
            return weights.sum(1) / self.num_heads
        if "weights-mismatch" in self.wrong:
            return (torch.stack(logits, 1) * 2).softmax(-1)
        if "weights-dropped" in self.wrong and self.training:
            return functional.dropout(weights, self.p)
        return weights


def make(*wrong: str) -> type[Base]:
    """A class with these mistakes."""
    return type("MultiHead", (Base,), {"wrong": frozenset(wrong)})
