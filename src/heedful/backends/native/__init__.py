"""The kernel in C++: exact weights in panels that stay in the cache, every common question in the same pass.

It takes float32, bfloat16 and float16 on the CPU. It is compiled when heedful is installed where a C++ compiler is
present; without it nothing is missing but speed.
"""

from typing import Any

import torch
from torch.autograd import forward_ad

from ..._call import Call
from ...reductions import Reduction, TopK
from .. import Result, load
from . import _library, _questions
from ._gradient import attend
from ._info import Info, info
from ._run import Wanted

NAME = "native"

__all__ = ["NAME", "Info", "info", "refusals", "run"]


def refusals(call: Call) -> list[str]:
    """Why the kernel cannot take the call."""
    found = [_library.reason()]
    if call.query.device.type != "cpu":
        found.append(f"it runs on the CPU, the tensors are on {call.query.device}")
    elif call.query.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        found.append(
            f"it takes float32, bfloat16 and float16, not {str(call.query.dtype).removeprefix('torch.')}"
        )
    if call.edits:
        found.append("an edit changes the weights before the values are summed")
    if call.dropout_p:
        found.append("dropout changes the weights before the values are summed")
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        found.append("torch.func and forward mode must see plain operations")
    if torch.compiler.is_compiling():
        found.append("a compiler must see plain operations")
    return [reason for reason in found if reason]


def run(call: Call, reductions: tuple[Reduction, ...] = (), need_output: bool = True) -> Result:
    """The output from the kernel, with the answers it knows; others by a second pass over panels."""
    recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in call.tensors)
    known = {each: names for each in reductions if (names := _names(each, recorded)) is not None}
    others = tuple(each for each in reductions if each not in known)
    needed = {name for names in known.values() for name in names}
    wanted = Wanted(
        tuple(sorted(needed - {"topk"})),
        max((each.k for each in known if isinstance(each, TopK)), default=0),
        need_output,
    )
    found = attend(call, wanted, recorded) if known or need_output else {}
    answers: dict[Reduction, Any] = {each: _questions.answer(each, found, call) for each in known}
    if others:
        answers.update(zip(others, load("panels").run(call, others, need_output=False).answers, strict=True))
    return Result(found.get("output"), tuple(answers[each] for each in reductions))


def _names(reduction: Reduction, recorded: bool) -> tuple[str, ...] | None:
    """The kernel's answers that a reduction is made of; None where it, or its gradient, is asked elsewhere."""
    names = _questions.names(reduction)
    if recorded and names is not None and not _questions.DIFFERENTIABLE.issuperset(names):
        return None
    return names
