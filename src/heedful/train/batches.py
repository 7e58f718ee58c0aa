"""Batches as a function of the step: documents packed into windows, in an order that the seed decides."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful import masks


@dataclass(frozen=True)
class Batch:
    """Some windows of the text.

    Attributes:
        inputs: Ids, (B, L) int64.
        targets: The id that follows each of them, (B, L) int64.
        documents: Which document of its window each input belongs to, (B, L) int64, from 0.
    """

    inputs: Tensor
    targets: Tensor
    documents: Tensor

    @property
    def positions(self) -> Tensor:
        """Where each input stands in its document, or in its window for the document that the window cuts into."""
        places = torch.arange(self.inputs.shape[1]).expand_as(self.inputs)
        begins = self.documents.diff(dim=1, prepend=self.documents[:, :1]).bool()
        return places - torch.where(begins, places, 0).cummax(1).values

    @property
    def mask(self) -> masks.Mask:
        """Each token sees itself and what came before it in its own document."""
        if not self.documents.any():
            return masks.causal()
        return masks.causal() & masks.documents(self.documents)


class Batches:
    """Windows of `context` tokens, each seen once per epoch, in a new order and with a new offset every time.

    `at(step)` depends on the arguments and the step alone, so a run continues anywhere without saved state.

    Args:
        tokens: All ids in one row; every document begins with `begin`.
        begin: The id that begins a document.
        context: Length of a window.
        size: Windows per batch.
        seed: Decides the order and the offsets.

    Cost:
        The order of one epoch is kept: 8 bytes per window.
    """

    def __init__(self, tokens: Tensor, begin: int, context: int, size: int, seed: int = 0) -> None:
        if len(tokens) <= context:
            raise ValueError(
                f"Batches(): a context of {context} needs more tokens than that, got {len(tokens)}."
            )
        self.tokens, self.begin, self.context, self.size, self.seed = tokens, begin, context, size, seed
        self.windows = max(1, (len(tokens) - 1) // context - 1)
        self._epoch = -1
        self._starts = torch.empty(0, dtype=torch.int64)

    def at(self, step: int, echo: float = 0.0) -> Batch:
        """The batch of a step, counted from 0.

        Args:
            step: Which one.
            echo: Share of its windows that say their first part, 4 tokens to half of the window, again and again. That
                rewards looking back for what came next, so that induction heads form in minutes.
        """
        numbers = range(step * self.size, (step + 1) * self.size)
        windows = self._windows(torch.stack([self._start(number) for number in numbers]))
        generator = torch.Generator().manual_seed(derived_seed(self.seed, "echo", step))
        echoes = torch.tensor([self._echo(window, echo, generator) for window in windows])
        return self._batch(windows, echoes)

    def in_order(self, most: int | None = None) -> Iterator[Batch]:
        """The text from its start in windows side by side, for evaluation; at most `most` windows."""
        starts = torch.arange(0, len(self.tokens) - self.context, self.context)[:most]
        for some in starts.split(self.size):
            yield self._batch(self._windows(some))

    def _start(self, number: int) -> Tensor:
        """Where window `number` of the run starts in the text."""
        epoch, place = divmod(number, self.windows)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(derived_seed(self.seed, "epoch", epoch))
            order = torch.randperm(self.windows, generator=generator)
            slack = len(self.tokens) - 1 - self.windows * self.context
            offset = torch.randint(slack + 1, (), generator=generator)
            self._epoch, self._starts = epoch, order * self.context + offset
        return self._starts[place]

    def _windows(self, starts: Tensor) -> Tensor:
        """The windows that begin at `starts`, each with one token more than the context."""
        return self.tokens[starts[:, None] + torch.arange(self.context + 1)].long()

    def _echo(self, window: Tensor, share: float, generator: torch.Generator) -> bool:
        """By chance, repeat the first part of a window over the rest of it, and say whether that happened."""
        chance, length = torch.rand(2, generator=generator).tolist()
        if chance >= share:
            return False
        shortest, longest = min(4, self.context), max(4, self.context // 2)
        period = round(shortest * (longest / shortest) ** length)
        window.copy_(window[torch.arange(len(window)) % period])
        return True

    def _batch(self, windows: Tensor, echoes: Tensor | None = None) -> Batch:
        """Inputs, targets and documents. A window that repeats itself is one document, so that it can look back."""
        inputs = windows[:, :-1]
        documents = (inputs == self.begin).cumsum(1)
        documents = documents - documents[:, :1]
        if echoes is not None:
            documents[echoes] = 0
        return Batch(inputs, windows[:, 1:], documents)


def derived_seed(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose, unrelated to that of any other."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
