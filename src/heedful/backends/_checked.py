"""What biases and edits of the caller's own return: whether it fits, and whether it hides tensors that want a gradient.

A gradient is found in a second pass over the panels, for the tensors that a bias or an edit names as its `tensors`. One
that it does not name would stay without, and nobody would know.
"""

from dataclasses import dataclass, replace
from operator import is_not
from typing import Any

import torch
from torch import Tensor

from .._call import Call, TensorBias
from .._checks import broadcasts, describe, tensors_of
from .._rows import Rows
from ..positions import Alibi
from ..reductions import Edit, Panel


@dataclass(frozen=True, eq=False)
class CheckedBias:
    """A bias of the caller's own, which must not be made of tensors that want a gradient if it is `recorded` here."""

    term: Any
    recorded: bool

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tensors_of(self.term)

    def bias(self, rows: Rows, keys: range) -> Tensor:
        name = f"attn_bias: {type(self.term).__name__}.bias()"
        with torch.set_grad_enabled(self.recorded):
            block = _plain(name, self.term.bias(rows, keys))
        full = (*rows.shape, len(keys))
        numbers = isinstance(block, Tensor) and block.dtype != torch.bool and not block.dtype.is_complex
        if not numbers or block.device != rows.device or not broadcasts(block.shape, full):
            where = f" on {block.device}" if isinstance(block, Tensor) else ""
            raise ValueError(
                f"{name} must return a tensor of numbers on {rows.device} that broadcasts to {full} "
                f"(batch, heads, rows, keys), got {describe(block)}{where}."
            )
        return block


def checked_biases(call: Call) -> Call:
    """The call, with every bias of the caller's own checked when it is asked. For calls outside torch.func."""
    if not call.bias:
        return call
    grad = torch.is_grad_enabled()
    terms = (
        x if type(x) in (TensorBias, Alibi) else CheckedBias(x, grad and not _learns(x)) for x in call.bias
    )
    return replace(call, bias=tuple(terms))


def checked_edits(edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
    """The edits, of which one that hides a tensor raises TypeError when it is called."""
    return tuple(edit if _learns(edit) else _checked(edit) for edit in edits)


def _checked(edit: Edit) -> Edit:
    def checked(panel: Panel) -> Tensor:
        with torch.enable_grad():
            weights = edit(replace(panel, value=panel.value.detach()))
        return _plain(f"edit: {getattr(edit, '__qualname__', type(edit).__name__)}", weights)

    return checked


def _learns(owner: Any) -> bool:
    """Whether an owner names tensors that want a gradient: the same ones whenever it is asked."""
    named, again = (
        [x for x in tensors_of(owner) if isinstance(x, Tensor) and x.requires_grad] for _ in range(2)
    )
    if torch.is_grad_enabled() and any(map(is_not, named, again)):
        raise TypeError(
            f"{type(owner).__name__}.tensors are made anew whenever they are asked, so a gradient would not reach what "
            "they are made of. Use it within torch.nn.utils.parametrize.cached(), or name tensors that stay."
        )
    return bool(named)


def _plain(name: str, made: Any) -> Any:
    if isinstance(made, Tensor) and made.requires_grad:
        raise TypeError(
            f"{name} is made of a tensor that requires a gradient, which would not reach it. Give it an attribute "
            "`tensors`, a tuple with that tensor."
        )
    return made
