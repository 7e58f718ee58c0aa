"""The answers that were taken while a call ran, where its queries and keys were not kept."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from .. import backends
from .._call import Call
from .._weights import Weights
from ..reductions import Reduction


class Answers(Weights):
    """Weights that answer what `watch(model, ...)` was told to ask, and nothing else.

    Of queries, keys and values only the shapes are left (tensors on the device "meta", which have no memory).
    """

    @classmethod
    def of(cls, weights: Weights, reductions: Sequence[Reduction]) -> "Answers":
        """These answers of a call that has run."""
        call = weights._call
        query, key, value = (torch.empty_like(x, device="meta") for x in (call.query, call.key, call.value))
        shell = Call(query, key, value, call.rows, edits=call.edits)
        answers = [(reduction, weights._answers[reduction]) for reduction in reductions]
        return cls(shell, weights._backend, weights._batch_shape, weights._head_shape, answers, weights._grad)

    @property
    def kept(self) -> tuple[Reduction, ...]:
        """The questions that have answers."""
        return tuple(self._answers)

    @property
    def device(self) -> torch.device:
        return next((x.device for x in tree_leaves(list(self._answers.values()))), torch.device("cpu"))

    def __repr__(self) -> str:
        return f"Answers({', '.join(map(repr, self.kept))}; of weights {tuple(self.shape)})"

    def _run(self, call: Call, reductions: tuple[Reduction, ...], need_output: bool = False) -> Any:
        wanted = ", ".join(map(repr, reductions)) or "a product"
        raise RuntimeError(
            f"watch() was given reductions and kept their answers only: {', '.join(map(repr, self.kept))}. "
            f"To ask for {wanted} too, name it in watch(), or watch without reductions: that keeps queries and keys, "
            "and answers anything later."
        )

    def _select(self, choices: list[slice | Tensor]) -> Weights:
        raise RuntimeError(
            f"watch() was given reductions and kept their answers only: {', '.join(map(repr, self.kept))}. "
            "Ask first and index the answer, such as entropy()[0], or watch without reductions to have the rows."
        )

    def _elements(self, coordinates: list[Tensor]) -> Tensor:
        return self._select([]).full()

    def __reduce__(self) -> tuple[Any, ...]:
        answers = tree_map_only(Tensor, Tensor.detach, self._remembered)
        return restored, (self._call, self._backend.NAME, self._batch_shape, self._head_shape, answers)


def restored(
    shell: Call,
    backend: str | backends.Backend,
    batch_shape: tuple[int, ...],
    head_shape: tuple[int, ...],
    answers: list[tuple[Reduction, Any]],
) -> Answers:
    """Answers from their parts, as pickle and `load` keep them."""
    module = backends.load(backend) if isinstance(backend, str) else backend
    return Answers(shell, module, batch_shape, head_shape, answers, grad=False)
