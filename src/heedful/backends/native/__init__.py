"""The kernel in C++: exact weights in panels that stay in the cache, every common question in the same pass.

It takes float32, bfloat16 and float16 on the CPU. It is compiled when heedful is installed where a C++ compiler is
present; without it nothing is missing but speed.
"""

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..._call import Call
from ..._checks import transformed
from ...reductions import Reduction
from .. import Result, plain
from . import _library
from ._gradient import attend
from ._info import Info, info
from ._questions import Plan
from ._ranges import lies_apart
from ._run import Wanted

NAME = "native"
PLAIN = {Tensor, Parameter}
OUTPUT = Wanted()
_Mode = torch._C._TorchDispatchModeKey
TRACERS = (_Mode.FAKE, _Mode.PROXY, _Mode.FUNCTIONAL)

__all__ = ["NAME", "Info", "info", "refusals", "run"]


def refusals(call: Call) -> list[str]:
    """Why the kernel cannot take the call."""
    missing = _library.reason()
    found = [missing] if missing else []
    if not call.query.is_cpu:
        found.append(f"it runs on the CPU, the tensors are on {call.query.device}")
    elif call.query.dtype not in _library.FLOATS:
        found.append(
            f"it takes float32, bfloat16 and float16, not {str(call.query.dtype).removeprefix('torch.')}"
        )
    if call.edits:
        found.append("an edit changes the weights before the values are summed")
    if call.dropout_p:
        found.append("dropout changes the weights before the values are summed")
    if call.mask is not None and lies_apart(call.mask, call.rows):
        found.append("the keys of this mask lie apart, and it reads all from the first to the last")
    if transformed():
        found.append("torch.func and forward mode must see plain operations")
    if torch.compiler.is_compiling():
        found.append("a compiler must see plain operations")
    tensors = call.tensors if call.mask is None else (*call.tensors, *call.mask.tensors)
    if any(map(_handles_operations, set(map(type, tensors)) - PLAIN)):
        found.append("a class of tensors that handles operations itself must see plain ones")
    if torch._C._len_torch_dispatch_stack() and any(map(torch._C._get_dispatch_mode, TRACERS)):
        found.append("a mode that traces or fakes operations must see plain ones")
    return found


def _handles_operations(kind: Any) -> bool:
    return kind.__torch_dispatch__ is not Tensor.__torch_dispatch__  # pyright: ignore


def run(call: Call, reductions: tuple[Reduction, ...] = (), need_output: bool = True) -> Result:
    """The output from the kernel, with the answers it knows; others by a second pass."""
    recorded = torch.is_grad_enabled() and any(map(attrgetter("requires_grad"), call.tensors))
    if not reductions:
        return Result(attend(call, OUTPUT, recorded)["output"] if need_output else None, ())
    plan = Plan(call, reductions, need_output, recorded)
    found = {} if plan.empty else attend(call, plan.wanted, recorded)
    if not plan.others and not plan.later:
        return Result(found.get("output"), tuple([plan.answer(each, found) for each in reductions]))
    answers: dict[Reduction, Any] = {each: plan.answer(each, found) for each in plan.now}
    if plan.others:
        answers.update(zip(plan.others, plain(call, tuple(plan.others)).answers, strict=True))
    if plan.later:
        later = run(call, tuple(plan.later), need_output=False)
        answers.update(zip(plan.later, later.answers, strict=True))
    return Result(found.get("output"), tuple(answers[each] for each in reductions))
