"""The calls that are timed: heedful's, and the same of PyTorch in three ways."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import heedful
from heedful import (
    Alibi,
    ByKey,
    DistanceProfile,
    Entropy,
    KeyColumns,
    LogSumExp,
    Mass,
    MaxLogit,
    MeanDistance,
    Pooled,
    Received,
    TopK,
    masks,
)

FOUR = (LogSumExp(), Entropy(), Received(), TopK(8))
# With FOUR, everything that the kernel reduces in its own pass.
MORE = (
    *(
        MaxLogit(),
        Mass(),
        MeanDistance(),
        DistanceProfile(),
        Received("max"),
        Received("mean", by_value_norm=True),
    ),
    *(Pooled(64, 64), Pooled(64, 64, "max"), KeyColumns((0,))),
)
LARGEST_MATRIX = 2**28  # elements: above, PyTorch's own softmax with all the weights is left out


@dataclass(frozen=True)
class Case:
    """One call of attention.

    Attributes:
        kind: "full", "causal", "window" (of 512) or "alibi" (causal too).
        train: Whether the gradient is taken as well.
        everything: Whether all that the kernel reduces is asked together as well.
        turns: How often it is timed.
    """

    name: str
    B: int
    H: int
    G: int
    L: int
    S: int
    D: int
    kind: str = "full"
    train: bool = False
    everything: bool = False
    turns: int = 9


CASES = [
    Case("full N1024 D64", 1, 8, 8, 1024, 1024, 64, turns=15),
    Case("full N4096 D64", 1, 8, 8, 4096, 4096, 64, everything=True),
    Case("causal N4096 D64", 1, 8, 8, 4096, 4096, 64, "causal"),
    Case("full N4096 D128", 1, 8, 8, 4096, 4096, 128),
    Case("GQA 32/8 causal N2048 D128", 1, 32, 8, 2048, 2048, 128, "causal"),
    Case("window 512 causal N8192 D64", 1, 8, 8, 8192, 8192, 64, "window", turns=5),
    Case("ALiBi causal N4096 D64", 1, 8, 8, 4096, 4096, 64, "alibi", turns=5),
    Case("B4 H12 N128 D64", 4, 12, 12, 128, 128, 64, turns=51),
    Case("decode H32 S4096 D128", 1, 32, 32, 1, 4096, 128, turns=31),
    Case("decode GQA 32/8 S4096 D128", 1, 32, 8, 1, 4096, 128, turns=31),
    Case("forward + backward N4096 full", 1, 8, 8, 4096, 4096, 64, train=True, turns=5),
    Case("forward + backward N4096 causal", 1, 8, 8, 4096, 4096, 64, "causal", train=True, turns=5),
]


class Contest:
    """A case with its tensors: PyTorch's output, heedful's output, and heedful's output with four answers."""

    def __init__(self, case: Case, dtype: torch.dtype, backend: str):
        torch.manual_seed(0)
        self.case, self.backend = case, backend
        sizes = ((case.B, case.H, case.L), (case.B, case.G, case.S), (case.B, case.G, case.S))
        self.inputs = [torch.randn(*size, case.D).to(dtype).requires_grad_(case.train) for size in sizes]
        self.grad = torch.randn(case.B, case.H, case.L, case.D).to(dtype)

    def contestants(self, compiled: bool) -> dict[str, Callable[[], Any]]:
        """What takes turns; the first is what the others are compared with.

        Args:
            compiled: Whether compiled flex_attention takes part, which takes a while to compile.
        """
        asked: dict[str, Callable[[], Any]] = {
            "torch": lambda: self._finish(self.by_torch()),
            "output": lambda: self._finish(self.by_heedful()[0]),
        }
        asked["four"] = lambda: self._finish_all(*self.by_heedful(FOUR))
        if self.case.everything:
            groups = ByKey(torch.arange(self.case.S) * 8 // self.case.S)
            asked["everything"] = lambda: self.by_heedful((*FOUR, *MORE, groups))
        if self.case.H * self.case.L * self.case.S <= LARGEST_MATRIX:
            asked["eager"] = lambda: self._finish(self.by_matrix()[0])
        if compiled and not self.case.train and self.case.L > 1:
            flex = self.by_flex()
            torch.testing.assert_close(flex(), self.by_torch(), atol=2e-2, rtol=2e-2)
            asked["flex"] = flex
        return asked

    def by_torch(self) -> Tensor:
        """The output of PyTorch's fused attention; where it has no such rule, with the mask as a tensor."""
        causal = self.case.kind == "causal"
        return F.scaled_dot_product_attention(
            *self.inputs, attn_mask=self.matrix, is_causal=causal, enable_gqa=self.case.H != self.case.G
        )

    def by_matrix(self) -> tuple[Tensor, Tensor]:
        """Output and weights, by the matrix."""
        query, key, value = self.inputs
        key, value = (x.repeat_interleave(self.case.H // self.case.G, 1) for x in (key, value))
        logits = query @ key.mT * self.case.D**-0.5
        hidden = self.matrix if self.case.kind != "causal" else self.hidden
        weights = (logits if hidden is None else logits + hidden).softmax(-1)
        return weights @ value, weights

    def by_flex(self) -> Callable[[], Tensor]:
        """Compiled flex_attention, with a mask of blocks."""
        kind, H = self.case.kind, self.case.H
        block_mask, score_mod = None, None
        if kind != "full":
            reach = 512 if kind == "window" else self.case.S
            block_mask = create_block_mask(
                lambda b, h, i, j: (i >= j) & (i - j < reach),
                None,
                None,
                self.case.L,
                self.case.S,
                device="cpu",
            )
        if kind == "alibi":
            slopes = Alibi(H).slopes()
            score_mod = lambda score, b, h, i, j: score - slopes[h] * (i - j)  # noqa: E731
        torch._dynamo.reset()
        run = torch.compile(flex_attention, dynamic=False)
        return lambda: run(
            *self.inputs, score_mod=score_mod, block_mask=block_mask, enable_gqa=H != self.case.G
        )

    def by_heedful(self, reductions: tuple[heedful.Reduction, ...] = ()) -> heedful.Attention:
        """The same from heedful."""
        return heedful.scaled_dot_product_attention(
            *self.inputs, **self.rules, reduce=reductions, backend=self.backend
        )

    @property
    def rules(self) -> dict[str, Any]:
        """The mask and the bias as heedful takes them."""
        mask = {"full": None, "window": masks.window(512)}.get(self.case.kind, masks.causal())
        return {"mask": mask, "attn_bias": Alibi(self.case.H) if self.case.kind == "alibi" else None}

    @cached_property
    def hidden(self) -> Tensor:
        """Minus infinity where a causal mask hides a key."""
        size = (self.case.L, self.case.S)
        return torch.full(size, -torch.inf, dtype=self.inputs[0].dtype).triu(1 + self.case.S - self.case.L)

    @cached_property
    def matrix(self) -> Tensor | None:
        """What PyTorch must be given for a window or ALiBi: a matrix."""
        if self.case.kind not in ("window", "alibi"):
            return None
        distance = torch.arange(self.case.L)[:, None] - torch.arange(self.case.S)
        bias = torch.zeros(distance.shape)
        if self.case.kind == "alibi":
            bias = -Alibi(self.case.H).slopes()[:, None, None] * distance.abs()
        reach = 512 if self.case.kind == "window" else self.case.S
        hidden = (distance < 0) | (distance >= reach)
        matrix = bias.masked_fill(hidden, -torch.inf).to(self.inputs[0].dtype)
        return matrix[None] if matrix.dim() == 3 else matrix

    def check(self) -> None:
        """The output and the entropy of some rows against float64. Raises AssertionError."""
        with torch.no_grad():
            output, weights = self.by_heedful((Entropy(),))
            rows = torch.arange(0, self.case.L, max(1, self.case.L // 16))
            query, key, value = (x.double() for x in self.inputs)
            # The rows that are looked at, and no others, by the definition itself.
            true = torch.cat([self._true_row(query, key, int(row)) for row in rows], 2)
            wanted = true @ value.repeat_interleave(self.case.H // self.case.G, 1)
            allowed = 2e-5 if output.dtype == torch.float32 else 2e-2
            torch.testing.assert_close(output[..., rows, :].double(), wanted, rtol=0, atol=allowed)
            entropy = torch.special.entr(true).sum(-1)
            torch.testing.assert_close(weights.entropy()[..., rows].double(), entropy, rtol=0, atol=2e-5)

    def _true_row(self, query: Tensor, key: Tensor, row: int) -> Tensor:
        one = query[:, :, row : row + 1]
        start = self.case.S - self.case.L + row
        answer = heedful.scaled_dot_product_attention(
            one, key, key, **self.rules, query_start=start, backend="reference"
        )
        return answer.weights.full()

    def _finish(self, output: Tensor, *more: Tensor) -> None:
        if self.case.train:
            torch.autograd.grad((output, *more), self.inputs, (self.grad, *map(torch.ones_like, more)))

    def _finish_all(self, output: Tensor, weights: heedful.Weights) -> None:
        answers = weights.entropy(), weights.logsumexp(), weights.received(), weights.topk(8).values
        self._finish(output, *(answers if self.case.train else ()))
