"""A test suite that the author of an attention kernel can subclass. The only file that needs pytest.

from heedful.checking.suite import AttentionSuite

class TestMine(AttentionSuite):
    attention = staticmethod(my_attention)
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from heedful.checking import assert_attention, cases
from heedful.checking.cases import Case, Shape
from heedful.checking.readings import Reading
from heedful.checking.search import cast
from heedful.checking.stages import attend

SHAPES = (
    Shape(2, 3, 3, 5, 7, 8, 6),
    Shape(1, 2, 2, 1, 9, 16, 16),
    Shape(3, 4, 2, 6, 6, 8, 8),
    Shape(2, 2, 1, 33, 65, 32, 32),
)
SIDES = ("query", "key", "value")


def budget(case: Case, dtype: torch.dtype) -> tuple[Tensor, float]:
    """The right output in float64, and how far from it an honest computation in this dtype may be.

    Twice the error of plain dense code in the same dtype, plus one rounding of the largest value.
    """
    call = Reading().call(case, "bhld")
    rounded = cast(cast(call, dtype), torch.float64)
    right = attend(rounded).output
    same = attend(cast(call, dtype)).output.double()
    error = (same - right).abs().max().item()
    return right, 2 * (error + torch.finfo(dtype).eps * right.abs().max().item())


def closest(seen: Tensor, right: Tensor, allowed: float) -> None:
    """Fail with the worst element when the error is larger than allowed."""
    __tracebackhide__ = True  # so that pytest shows the message at the line of the caller
    assert seen.shape == right.shape, f"output is {tuple(seen.shape)}, expected {tuple(right.shape)}"
    away = (seen.double() - right).abs().nan_to_num(torch.inf)
    worst = int(away.argmax())
    where = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), right.shape))
    share = (away > allowed).double().mean().item()
    assert away.max().item() <= allowed, (
        f"worst element {where}: {seen[where].item():.6g}, right is {right[where].item():.6g}; error "
        f"{away.max().item():.2e}, allowed {allowed:.2e}; {share:.1%} of the elements are off by more"
    )


class AttentionSuite:
    """Subclass it, set `attention`, and run pytest.

    `attention` is a function of (query, key, value) or (query, key, value, mask) for tensors (B, H, L, D) and a
    boolean mask in which True = may attend. Switch off what it does not offer.

    Attributes:
        attention: The function.
        dtypes: Floating-point types to try.
        masks: Whether it takes a mask.
        grouped: Whether it takes fewer key heads than query heads.
        wide_values: Whether the size of values may differ from that of keys.
        gradients: Whether it is differentiable.
        options: For `heedful.check`.
    """

    attention: ClassVar[Callable[..., Any]]
    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float32, torch.bfloat16, torch.float16)
    masks: ClassVar[bool] = True
    grouped: ClassVar[bool] = True
    wide_values: ClassVar[bool] = True
    gradients: ClassVar[bool] = True
    options: ClassVar[dict[str, Any]] = {}

    def run(self, case: Case, dtype: torch.dtype) -> Tensor:
        """The output on one case."""
        query, key, value = (getattr(case, side).to(dtype) for side in SIDES)
        given = () if case.mask is None else (case.mask,)
        result = type(self).attention(query, key, value, *given)
        return result[0] if isinstance(result, tuple) else result

    def fits(self, shape: Shape) -> None:
        """Skip shapes that this attention does not offer."""
        if shape.kv_heads != shape.heads and not self.grouped:
            pytest.skip("no grouped heads")
        if shape.value_dim != shape.head_dim and not self.wide_values:
            pytest.skip("values as wide as keys")

    def test_no_known_mistake(self) -> None:
        """`heedful.check` finds nothing."""
        assert_attention(type(self).attention, **self.options)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    @pytest.mark.parametrize("shape", SHAPES, ids=Shape.words)
    def test_output(self, shape: Shape, dtype: torch.dtype) -> None:
        """The output is within the budget of its dtype."""
        self.fits(shape)
        if dtype not in self.dtypes:
            pytest.skip(f"no {dtype}")
        case = cases.plain(shape)
        closest(self.run(case, dtype), *budget(case, dtype))

    @pytest.mark.parametrize("shape", SHAPES, ids=Shape.words)
    def test_mask(self, shape: Shape) -> None:
        """A mask that differs between samples and heads."""
        self.fits(shape)
        if not self.masks:
            pytest.skip("no masks")
        case = cases.with_mask(cases.plain(shape), per_sample=True, heads=shape.heads)
        closest(self.run(case, torch.float32), *budget(case, torch.float32))

    @pytest.mark.parametrize("shape", SHAPES, ids=Shape.words)
    def test_gradients(self, shape: Shape) -> None:
        """Gradients of query, key and value, each within its own budget."""
        self.fits(shape)
        if not self.gradients:
            pytest.skip("no gradients")
        case = cases.plain(shape)
        for side, seen, right, allowed in gradients(self, case):
            try:
                closest(seen, right, allowed)
            except AssertionError as error:
                raise AssertionError(f"gradient of {side}: {error}") from None


def gradients(suite: AttentionSuite, case: Case) -> list[tuple[str, Tensor, Tensor, float]]:
    """For each side: the suite's gradient, the right one, and the error that is allowed."""
    direction = torch.randn(
        *case.query.shape[:-1],
        case.value.shape[-1],
        generator=torch.Generator().manual_seed(1),
        dtype=torch.float64,
    )

    def of(run: Callable[[Case], Tensor], dtype: torch.dtype) -> list[Tensor]:
        leaves = [getattr(case, side).to(dtype).requires_grad_() for side in SIDES]
        query, key, value = leaves
        output = run(replace(case, query=query, key=key, value=value))
        return list(torch.autograd.grad(output, leaves, direction.to(output.dtype)))

    def reference(leaves: Case) -> Tensor:
        return attend(Reading().call(leaves, "bhld")).output

    mine = of(lambda leaves: suite.run(leaves, torch.float32), torch.float32)
    right, same = of(reference, torch.float64), of(reference, torch.float32)
    eps = torch.finfo(torch.float32).eps
    found = []
    for side, a, b, c in zip(SIDES, mine, right, same, strict=True):
        allowed = 2 * ((c.double() - b).abs().max().item() + eps * b.abs().max().item())
        found.append((side, a, b, allowed))
    return found
