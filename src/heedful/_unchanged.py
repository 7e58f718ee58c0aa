"""Whether the tensors of a call are still what they were when it was made."""

import torch
from torch import Tensor

from ._call import Call
from ._checks import tensors_of


class Unchanged:
    """Remembers how often the tensors of a call had been changed in place."""

    def __init__(self, call: Call):
        self._then = _counts(call)

    def check(self, call: Call, value_too: bool) -> None:
        """Raise RuntimeError if one of them was changed since."""
        if not self._then or torch.compiler.is_compiling():
            return
        for (name, then), (_, now) in zip(self._then, _counts(call), strict=True):
            if then != now and (name != "value" or value_too):
                raise RuntimeError(
                    f"{name} was changed in place after the call, so its weights can no longer be computed. "
                    "Ask before changing it, take the answer in the call with reduce=, or pass a clone."
                )


def _counts(call: Call) -> list[tuple[str, int]]:
    """The tensors that the weights are made of, and how often each was changed in place, where torch counts that."""
    if torch.compiler.is_compiling():
        return []
    named = [("query", call.query), ("key", call.key), ("value", call.value)]
    if call.sinks is not None:
        named.append(("sinks", call.sinks))
    if call.mask is not None:
        named += [("mask", x) for x in call.mask.tensors]
    named += [("attn_bias", x) for term in call.bias for x in tensors_of(term)]
    return [(name, x._version if isinstance(x, Tensor) and not x.is_inference() else 0) for name, x in named]
