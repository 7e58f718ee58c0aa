"""The calls of the contract suite: each has a name, and shows one thing that a backend must get right.

A case is written twice: as a caller writes it, and, for the oracle, with the mask as a matrix that is worked out here
from positions alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful.backends import NAMES
from oracle import Numbers, Problem, baseline, truth

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
NEVER_REFUSE = {"reference", "panels"}


@dataclass(frozen=True)
class Case:
    """One call. Sizes differ from each other, so that a swapped axis shows.

    Attributes:
        mask: Makes the mask a caller passes.
        keep: Says who may look: a function of (batch item, head, query, key, position of the query), as index tensors
            that broadcast to (B, H, L, S).
        bias: Shape of `attn_bias`; forbid: a share of it is -inf.
        layout: What the caller's tensors look like in memory.
    """

    name: str
    B: int = 2
    H: int = 4
    G: int = 4
    L: int = 5
    S: int = 7
    E: int = 6
    Ev: int = 6
    mask: Callable[["Case"], Any] | None = None
    keep: Callable[..., Any] | None = None
    bias: tuple[int, ...] | None = None
    forbid: float = 0.0
    softcap: float | None = None
    sinks: bool = False
    scale: float | None = None
    query_start: int | tuple[int, ...] | None = None
    layout: str = "contiguous"
    size: float = 1.0

    @property
    def positions(self) -> Tensor:
        """Position of each query of each batch item among the keys, (B, 1, L, 1)."""
        start = self.S - self.L if self.query_start is None else self.query_start
        start = torch.tensor(start if isinstance(start, tuple) else [start] * self.B)
        return start.view(-1, 1, 1, 1) + torch.arange(self.L)[:, None]

    def matrix(self) -> Tensor:
        """Who may look at whom, (B, H, L, S)."""
        sizes = (self.B, self.H, self.L, self.S)
        if self.keep is None:
            return torch.ones(sizes, dtype=torch.bool)
        b, h, i, j = (
            torch.arange(n).view([-1 if d == k else 1 for d in range(4)]) for k, n in enumerate(sizes)
        )
        return torch.as_tensor(self.keep(b=b, h=h, i=i, j=j, p=self.positions)).expand(sizes)


class Made:
    """The tensors of a case in one dtype, what is true of them, and how the baseline fares."""

    def __init__(self, case: Case, dtype: torch.dtype):
        self.case, self.dtype = case, dtype
        torch.manual_seed(len(case.name))
        B, H, G, L, S, E, Ev = case.B, case.H, case.G, case.L, case.S, case.E, case.Ev
        draw = partial(torch.randn, dtype=torch.float64)
        query, key, value = draw(B, H, L, E) * case.size, draw(B, G, S, E), draw(B, G, S, Ev)
        if case.layout == "expanded":
            key, value = key[:1, :1].expand_as(key), value[:1].expand_as(value)
        bias = None if case.bias is None else draw(case.bias)
        if bias is not None and case.forbid:
            bias[torch.rand(case.bias) < case.forbid] = -torch.inf
        sinks = draw(H) if case.sinks else None
        scale = E**-0.5 if case.scale is None else case.scale
        query, key, value, bias, sinks = (
            None if x is None else x.to(dtype) for x in (query, key, value, bias, sinks)
        )
        self.problem = Problem(query, key, value, case.matrix(), scale, bias, case.softcap, sinks)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.grads = draw(B, H, L, Ev).to(dtype), draw(B, H, L).to(wide), draw(B, H, L).to(wide)
        # The log of an empty denominator has no gradient to give.
        empty = ~self.visible.any(-1) if sinks is None else torch.zeros(B, H, L, dtype=torch.bool)
        self.grads[2].masked_fill_(empty, 0)

    @property
    def visible(self) -> Tensor:
        bias = self.problem.bias
        return self.problem.keep if bias is None else self.problem.keep & (bias != -torch.inf)

    @cache  # noqa: B019
    def truth(self, questions: bool = False) -> dict[str, Numbers]:
        return truth(self.problem, *self._grads(questions))

    @cache  # noqa: B019
    def baseline(self, questions: bool = False) -> dict[str, Tensor]:
        return baseline(self.problem, *self._grads(questions))

    def _grads(self, questions: bool) -> list[Tensor]:
        """The gradients of the loss; without questions only the output's, so that theirs hide nothing."""
        output, *answers = self.grads
        return [output, *(grad if questions else torch.zeros_like(grad) for grad in answers)]

    def inputs(self) -> dict[str, Tensor]:
        """Fresh tensors that require gradients, in the layout of the case."""
        return {
            name: laid_out(x, self.case.layout if name in ("query", "key", "value") else "")
            for name, x in self.problem.tensors.items()
        }

    def attend(self, inputs: dict[str, Tensor], backend: str, **more: Any) -> heedful.Attention:
        """Call heedful as a caller writes the case; skips where the backend says that it does not take the call."""
        case = self.case
        arguments = {
            "mask": None if case.mask is None else case.mask(case),
            "attn_bias": inputs.get("bias"),
            "query_start": torch.tensor(case.query_start)
            if isinstance(case.query_start, tuple)
            else case.query_start,
            "scale": case.scale,
            "softcap": case.softcap,
            "sinks": inputs.get("sinks"),
            "backend": backend,
        }
        return attend(inputs["query"], inputs["key"], inputs["value"], **{**arguments, **more})


def attend(*args: Any, backend: str, **kwargs: Any) -> heedful.Attention:
    """The function, on a backend by name. Only a backend that may refuse can skip a test."""
    try:
        return heedful.scaled_dot_product_attention(*args, backend=backend, **kwargs)
    except NotImplementedError as refusal:
        if backend in NEVER_REFUSE or not str(refusal).startswith(
            f"backend={backend!r} cannot take this call.\n"
        ):
            raise
        return pytest.skip(str(refusal))


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers, with other strides; the tensor returned is the leaf that gets the gradient."""
    if layout == "transposed":  # (B, L, H, E) in memory, as a projection leaves it
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    elif layout == "sliced":  # every second entry of a larger tensor
        larger = torch.full((*x.shape[:-1], 2 * x.shape[-1] + 1), torch.nan, dtype=x.dtype)
        larger[..., 1::2] = x
        x = larger[..., 1::2]
    elif layout == "columns":  # the last two axes swapped in memory
        x = x.mT.contiguous().mT
    elif layout == "offset":  # a view that starts at an odd place in its storage
        x = torch.cat([x.new_zeros(3), x.flatten()])[3:].view(x.shape)
    elif layout == "expanded":  # strides of 0 where all items, or all heads, are the same
        for dim in (0, 1):
            one = x.narrow(dim, 0, 1).expand_as(x)
            x = one if torch.equal(one, x) else x
    return x.detach().requires_grad_()


@cache
def made(case: Case, dtype: torch.dtype) -> Made:
    return Made(case, dtype)


def every_backend(function: Callable) -> Callable:
    """Run a test on each backend there is, by its name."""
    return pytest.mark.parametrize("backend", NAMES)(function)


def every(cases: list[Case]) -> Callable[[Callable], Callable]:
    """Run a test on each of the cases."""
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def padded(case: Case) -> Tensor:
    """Real tokens of each batch item, (B, S): some gaps, the first and last item end early."""
    keep = (
        torch.arange(case.S)
        < torch.tensor([max(case.S - 3 * (b % 2) - 1, 1) for b in range(case.B)])[:, None]
    )
    keep[:, 1::3] = False
    return keep


def random_keep(case: Case) -> Tensor:
    """A random matrix, (B, H, L, S)."""
    generator = torch.Generator().manual_seed(7)
    return torch.rand(case.B, case.H, case.L, case.S, generator=generator) < 0.5


def ids(case: Case, length: int) -> Tensor:
    """Documents of unequal length, the last token of each batch item belongs to none."""
    ids = (torch.arange(length) * torch.arange(1, case.B + 1)[:, None]) // max(length // 2, 1)
    ids[:, -1:] = -1
    return ids
