"""Whether the tensors of a call are still what they were when it was made."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ._call import Call
from ._checks import tensors_of


def versions(call: Call, changed: Sequence[bool] = ()) -> list[int]:
    """How often each tensor that the weights are made of was changed in place; nothing while torch compiles.

    Args:
        call: The call.
        changed: For a copy of a call: which of its tensors had been changed by then. They never count as unchanged.
    """
    if torch.compiler.is_compiling():
        return []
    # torch does not count for tensors of inference mode, and what a bias calls a tensor may be something else.
    found = [x._version if isinstance(x, Tensor) and not x.is_inference() else 0 for _, x in _named(call)]
    return [-1 if each else n for n, each in zip(found, changed, strict=False)] if changed else found


def changes(call: Call, then: list[int]) -> tuple[bool, ...]:
    """Which tensors of the call were changed in place since its versions were `then`; nothing if that is not known."""
    now = versions(call) if then else []
    return tuple(before != after for before, after in zip(then, now, strict=False))


def check_unchanged(call: Call, then: list[int], value_too: bool) -> None:
    """Raise RuntimeError if a tensor of the call was changed in place since its versions were `then`."""
    if versions(call) == then:
        return
    for (name, _), changed in zip(_named(call), changes(call, then), strict=False):
        if changed and (name != "value" or value_too):
            raise RuntimeError(
                f"{name} was changed in place after the call, so its weights can no longer be computed. "
                "Ask before changing it, take the answer in the call with reduce=, or pass a clone."
            )


def _named(call: Call) -> list[tuple[str, Tensor]]:
    named = [("query", call.query), ("key", call.key), ("value", call.value)]
    if call.sinks is not None:
        named.append(("sinks", call.sinks))
    if call.mask is not None:
        named += [("mask", x) for x in call.mask.tensors]
    for term in call.bias:
        named += [("attn_bias", x) for x in tensors_of(term)]
    return named
