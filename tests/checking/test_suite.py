"""The suite for kernel authors: a right attention passes it, and each of its tests can fail."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from heedful.checking.cases import plain
from heedful.checking.suite import SHAPES, AttentionSuite, budget, closest, gradients


class TestTorch(AttentionSuite):
    """torch's function passes the whole suite."""

    @staticmethod
    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


class Rough(AttentionSuite):
    """Three digits under float32 inputs."""

    @staticmethod
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16()).to(q.dtype)


def test_few_digits_fail_the_budget() -> None:
    case = plain(SHAPES[0])
    with pytest.raises(AssertionError, match=r"worst element .* error .* allowed"):
        closest(Rough().run(case, torch.float32), *budget(case, torch.float32))


def test_a_wrong_gradient_fails() -> None:
    case = plain(SHAPES[0])
    for _, seen, right, allowed in gradients(TestTorch(), case):
        closest(seen, right, allowed)
        with pytest.raises(AssertionError, match="worst element"):
            closest(1.1 * seen, right, allowed)


def test_a_shape_that_is_not_offered_is_skipped() -> None:
    class Plain(AttentionSuite):
        grouped = False

    with pytest.raises(pytest.skip.Exception, match="no grouped heads"):
        Plain().fits(SHAPES[2])
