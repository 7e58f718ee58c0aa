"""Whether the tensors of a call, and of its answers, are still what they were."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ._call import Call
from ._checks import tensors_of
from .reductions import TopKResult


def versions(call: Call) -> list[int]:
    """How often each tensor that the weights are made of was changed in place; nothing while torch compiles."""
    if torch.compiler.is_compiling():
        return []
    return [_version(x) for _, x in _named(call)]


def answer_versions(answer: Any) -> list[int]:
    """The same of an answer."""
    if torch.compiler.is_compiling():
        return []
    if isinstance(answer, Tensor):
        return [_version(answer)]
    return [_version(x) for x in (answer if type(answer) is TopKResult else tree_leaves(answer))]


def _version(x: Any) -> int:
    # torch does not count for tensors of inference mode, and what a bias calls a tensor may be something else.
    return x._version if isinstance(x, Tensor) and not x.is_inference() else 0


def check_unchanged(call: Call, then: list[int], value_too: bool) -> None:
    """Raise RuntimeError if a tensor of the call was changed in place since its versions were `then`."""
    now = versions(call)
    if now == then or not now or not then:
        return
    for (name, _), before, after in zip(_named(call), then, now, strict=True):
        if before != after and (name != "value" or value_too):
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
