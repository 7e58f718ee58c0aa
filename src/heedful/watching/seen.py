"""What a watch has seen: modules by name, their calls in order, and the weights of each call."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._weights import Weights
from .naming import Chosen, listed, matches
from .series import Series

MOST_NUMBERS = 2**30


class NotSeen(KeyError):
    """What was asked for was not seen; the message says why, and what to do."""

    def __str__(self) -> str:
        return str(self.args[0])


class Calls(Sequence[Weights]):
    """The calls of one module, in order. Where there was one call, stands for its weights.

    `len`, iteration and `.calls[i]` are always about the calls. Methods and indices are the weights' own where there
    was one call (`seen[name].entropy()`, `seen[name][0, 7, -1]`); where there were several, `seen[name][i]` is call i.
    """

    def __init__(self, name: str, calls: Series):
        self.name = name
        self._calls = calls

    @property
    def calls(self) -> tuple[Weights, ...]:
        """The weights of every call, in order."""
        return tuple(self._calls)

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Weights]:
        return iter(self._calls)

    def __getitem__(self, index: Any) -> Any:
        if len(self._calls) == 1:
            return self._calls[0][index]
        if isinstance(index, slice):
            return self.calls[index]
        if not isinstance(index, int):
            raise TypeError(self._several(f"[{index!r}]"))
        return self._calls[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if len(self._calls) != 1:
            raise AttributeError(self._several(f".{name}"))
        return getattr(self._calls[0], name)

    def __matmul__(self, x: Tensor) -> Tensor:
        if len(self._calls) != 1:
            raise TypeError(self._several(" @ x"))
        return self._calls[0] @ x

    def __repr__(self) -> str:
        shapes = ", ".join(str(tuple(self._calls[i].shape)) for i in range(min(4, len(self))))
        more = ", ..." if len(self) > 4 else ""
        return f"Calls({self.name!r}, {len(self)} x weights {shapes}{more})"

    def _several(self, asked: str) -> str:
        last = len(self) - 1
        return (
            f"{self.name!r} was called {len(self)} times, so {asked} could mean any of them. Choose a call, 0 to "
            f"{last}: seen[{self.name!r}][{last}]{asked}. For the row that produced each new token, use .rows()."
        )

    def rows(self, beam_indices: Tensor | None = None) -> Tensor:
        """The last row of every call: in generation, the row that produced each new token.

        Args:
            beam_indices: What `generate(num_beams=..., return_dict_in_generate=True).beam_indices` holds, (sequences,
                steps), -1 where a sequence has ended. Beams change places from step to step; with it, the rows are
                those of the returned sequences.

        Returns:
            (batch or sequences, heads, calls, keys), float. Keys are those of the whole sequence, with zeros where a
            call had none: tokens that came later, and those that a sliding cache had let go of.

        Raises:
            RuntimeError: The watch had reductions, so the rows were not kept.
            ValueError: `beam_indices` does not fit the batch.

        Cost: one row per call. Source: transformers#40752, #26174 (step 0 gives a whole matrix, later steps one row).
        """
        rows = [weights[..., -1, :] for weights in self._calls]
        if beam_indices is not None:
            rows = _follow_beams(rows, beam_indices)
        firsts = self._calls.first_keys
        width = max(first + row.shape[-1] for first, row in zip(firsts, rows, strict=False))
        placed = [
            pad(row, (first, width - first - row.shape[-1])) for first, row in zip(firsts, rows, strict=False)
        ]
        return torch.stack(placed, dim=-2)


def _follow_beams(rows: list[Tensor], beam_indices: Tensor) -> list[Tensor]:
    batch = rows[0].shape[0]
    if beam_indices.dim() != 2 or int(beam_indices.max()) >= batch:
        raise ValueError(
            f"beam_indices must be (sequences, steps) with numbers below the batch of {batch} beams, got "
            f"{tuple(beam_indices.shape)} up to {int(beam_indices.max())}. It is generate(...).beam_indices."
        )
    followed = []
    for row, beams in zip(rows, beam_indices.T.to(rows[0].device), strict=False):
        chosen = row[beams.clamp(min=0)]
        followed.append(chosen.masked_fill((beams < 0).view(-1, *[1] * (row.dim() - 1)), 0))
    return followed


class Layers(Sequence[Calls]):
    """The attention modules in the order of their first call, numbered from 0 whether watched or not."""

    def __init__(self, seen: "Seen"):
        self._seen = seen

    def __getitem__(self, index: Any) -> Any:
        order = self._seen._order
        if isinstance(index, slice):
            return [self._seen[name] for name in order[index] if name in self._seen._calls]
        if not -len(order) <= index < len(order):
            raise NotSeen(f"layers[{index}] is not there. {self._seen._summary()}")
        return self._seen[order[index]]

    def __len__(self) -> int:
        return len(self._seen)

    def __iter__(self) -> Iterator[Calls]:
        return iter(self._seen.values())


class Seen(Mapping[str, Calls]):
    """What `heedful.watch` has seen: a mapping from module names to `Calls`, in the order of their first call."""

    def __init__(self, model: str):
        self._model = model
        self._calls: dict[str, Series] = {}
        self._missed: dict[str, str] = {}
        self._order: list[str] = []

    @property
    def layers(self) -> Layers:
        """The attention modules by number: `seen.layers[3].entropy()`."""
        return Layers(self)

    @property
    def missed(self) -> dict[str, str]:
        """Modules whose attention could not be seen, and why."""
        return {name: why for name, why in self._missed.items() if name not in self._calls}

    def __getitem__(self, name: str) -> Calls:
        if name in self._calls:
            return Calls(name, self._calls[name])
        found = [each for each in self._calls if matches(each, name)]
        if len(found) == 1:
            return Calls(found[0], self._calls[found[0]])
        if found:
            raise NotSeen(f"{name!r} could be {', '.join(listed(found))}. Name one of them.")
        if name in self.missed:
            raise NotSeen(f"{name!r} was not seen: {self.missed[name]}.")
        if name in self._order:
            raise NotSeen(f"{name!r} was not watched: layers= left it out.")
        raise NotSeen(f"{name!r} was not seen. {self._summary()}")

    def __contains__(self, name: object) -> bool:
        return name in self._calls

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)

    def __repr__(self) -> str:
        return f"Seen({self._summary()})"

    def _summary(self) -> str:
        if not self._calls:
            missed = self.missed
            if self._order and not missed:
                count = len(self._order)
                return f"Nothing of {self._model} was seen: layers= left out all {count} attention modules that ran."
            what = f" {len(missed)} modules could not be seen, see .missed." if missed else ""
            return (
                f"Nothing of {self._model} was seen.{what} Call the model itself inside the block, "
                "in the thread that opened it."
            )
        calls = sum(map(len, self._calls.values()))
        names = ", ".join(listed(list(self._calls)))
        return f"{self._model}: {calls} calls of {len(self)} attention modules: {names}."

    def _number(self, name: str) -> int:
        """The module's number in the order of first calls."""
        if name not in self._order:
            self._order.append(name)
        return self._order.index(name)

    def _absent(self, layers: Sequence[Chosen]) -> list[int]:
        """Numbers among `layers` that no module has, of those that ran; none where none ran."""
        count = len(self._order)
        return [each for each in layers if isinstance(each, int) and each >= count > 0]

    def rows(self, beam_indices: Tensor | None = None) -> dict[str, Tensor]:
        """The row that produced each new token of a generation, for every module called more than once.

        Args:
            beam_indices: As in `Calls.rows`.

        Returns:
            By module name, (batch or sequences, heads, steps, keys).

        Raises:
            NotSeen: No module was called more than once.

        Cost: one row per call.
        """
        several = {name: calls for name, calls in self.items() if len(calls) > 1}
        if not several:
            raise NotSeen(
                f"No module was called more than once, so there are no steps to stitch. {self._summary()}"
            )
        return {name: calls.rows(beam_indices) for name, calls in several.items()}

    def to_tuple(self, pattern: str = "*", step: int | None = None) -> tuple[Tensor, ...]:
        """The whole matrices, as `outputs.attentions` of transformers holds them.

        Args:
            pattern: Which modules: a name or a pattern such as `"decoder.*.self_attn"`. All of a decoder-only or
                encoder-only model; one kind at a time of a model with cross-attention.
            step: Which call of each module, where there were several.

        Returns:
            One tensor (batch, heads, queries, keys) per module, in the order of first calls.

        Raises:
            NotSeen: No module matches.
            ValueError: A module was called several times and no step is given.
            MemoryError: The matrices would hold more than 2**30 numbers.

        Cost: L x S per head and module, which is what watching otherwise avoids.
        """
        chosen = {name: calls for name, calls in self.items() if matches(name, pattern)}
        if not chosen:
            raise NotSeen(f"to_tuple({pattern!r}) matches nothing. {self._summary()}")
        several = next((name for name, calls in chosen.items() if len(calls) != 1), None)
        if several is not None and step is None:
            raise ValueError(
                f"to_tuple() needs step=: {several!r} was called {len(self[several])} times. For the rows of a "
                "generation use rows()."
            )
        weights = [calls.calls[0 if step is None else step] for calls in chosen.values()]
        numbers = sum(each.numel() for each in weights)
        if numbers > MOST_NUMBERS:
            raise MemoryError(
                f"to_tuple() would hold {numbers * 4 / 2**30:.1f} GiB in {len(weights)} matrices. Give a pattern for "
                "fewer modules, or ask for rows, entropy(), topk(k) or received()."
            )
        return tuple(each.full() for each in weights)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one safetensors file; `heedful.watching.load` reads it.

        Args:
            path: The file. It is written under another name first, so a kill leaves the old file or the new one.

        Raises:
            NotImplementedError: A call has an edit, or a mask, bias or reduction of your own, that no file can hold.

        Cost: the queries and keys of every call, or the answers, once.
        """
        from .saving import save

        save(self, path)
