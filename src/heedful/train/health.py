"""How the heads are doing: asked in the same pass that measures the held-out loss."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.reductions import Entropy, MaxLogit
from heedful.train.batches import Batches
from heedful.train.model import Decoder
from heedful.train.patterns import Patterns, Shares, class_of

# A layer whose heads all look at one token each has stopped choosing (Zhai et al., "Stabilizing Transformer Training
# by Preventing Attention Entropy Collapse", 2023).
COLLAPSED = 0.1
# Kimi K2's report (2025) clips queries and keys at this score; runs whose scores pass it tend to diverge.
LARGE_LOGIT = 100.0


@dataclass(frozen=True)
class HeadHealth:
    """One head on the held-out text.

    Attributes:
        entropy: Mean over the queries, in nats.
        max_logit: Largest score.
        sink: Mean weight on the first token of the window, of the queries after it that may see it.
        kind: Its class on this text.
        shares: Mean weight on each pattern of `heedful.train.patterns`, over the queries that could follow it.
    """

    entropy: float
    max_logit: float
    sink: float
    kind: str
    shares: dict[str, float]


@dataclass(frozen=True)
class Health:
    """All heads, `heads[layer][head]`, and what to worry about."""

    heads: tuple[tuple[HeadHealth, ...], ...]
    warnings: tuple[str, ...]


@torch.no_grad()
def examine(model: Decoder, held_out: Batches, most: int) -> tuple[float, Health]:
    """The held-out loss in nats per token, and the state of every head, from one pass.

    Args:
        model: In evaluation mode.
        held_out: The held-out text.
        most: Windows to use at most.

    Cost:
        A forward run over these windows; no weights are built.
    """
    losses, tokens = 0.0, 0
    sums: list[list[tuple[Tensor, Tensor, Shares]]] = [[] for _ in model.blocks]
    for batch in held_out.in_order(most):
        asked = (Entropy(), MaxLogit(), Patterns(batch.inputs))
        logits, weights = model(batch.inputs, batch.mask, positions=batch.positions, reduce=asked)
        losses += nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), reduction="sum"
        ).item()
        tokens += batch.targets.numel()
        for layer, one in zip(sums, weights, strict=True):
            entropy, max_logit, shares = one.reduce(*asked)
            layer.append(
                (entropy.sum((0, 2)), max_logit.amax((0, 2)), Shares(*(part.sum(0) for part in shares)))
            )
    heads = tuple(_heads(layer, tokens) for layer in sums)
    return losses / tokens, Health(heads, warnings_about(heads))


def warnings_about(heads: tuple[tuple[HeadHealth, ...], ...]) -> tuple[str, ...]:
    """One sentence for each layer that has stopped choosing, and for each head with very large scores."""
    found = []
    for number, layer in enumerate(heads):
        highest = max(head.entropy for head in layer)
        if highest < COLLAPSED:
            found.append(
                f"Entropy collapse in layer {number}: every head looks at one token (at most {highest:.2g} nats). "
                "A lower rate, a longer warm-up or --qk-norm helps."
            )
        found.extend(
            f"Large scores in layer {number}, head {place}: up to {head.max_logit:.0f}. "
            "Runs tend to diverge from here; a lower rate, weight decay or --qk-norm helps."
            for place, head in enumerate(layer)
            if head.max_logit > LARGE_LOGIT
        )
    return tuple(found)


def _heads(sums: list[tuple[Tensor, Tensor, Shares]], tokens: int) -> tuple[HeadHealth, ...]:
    """The heads of one layer, from the sums of each batch."""
    entropies, max_logits, shares = zip(*sums, strict=True)
    entropy = torch.stack(entropies).sum(0) / tokens
    max_logit = torch.stack(max_logits).amax(0)
    total = Shares(*(torch.stack(parts).sum(0) for parts in zip(*shares, strict=True)))
    heads = []
    for head, (mean, largest) in enumerate(zip(entropy.tolist(), max_logit.tolist(), strict=True)):
        kind, measured = class_of(Shares(*(part[head] for part in total)))
        heads.append(HeadHealth(mean, largest, measured["first token"], kind, measured))
    return tuple(heads)
