"""The largest weights of long rows, which panels look for by groups of keys."""

import pytest
import torch
from torch import Tensor

import heedful
from cases import attend
from heedful.reductions._rows import largest

INF = torch.inf


def rows(width: int, kind: str) -> Tensor:
    torch.manual_seed(width)
    x = torch.randn(2, 3, 5, width)
    match kind:
        case "ties":
            return x.mul(2).round()
        case "equal":
            return torch.zeros_like(x)
        case "mostly -inf":
            return x.masked_fill(torch.rand_like(x) < 0.999, -INF)
        case "some nan":
            return x.masked_fill(torch.rand_like(x) < 0.002, torch.nan)
    return x


@pytest.mark.parametrize("kind", ["plain", "ties", "equal", "mostly -inf", "some nan"])
@pytest.mark.parametrize(("width", "k"), [(256, 1), (801, 3), (2055, 8), (2048, 8), (5001, 19)])
@pytest.mark.parametrize("working", [False, True])
def test_the_k_largest(width: int, k: int, kind: str, working: bool) -> None:
    x = rows(width, kind)
    found = largest(x, k, torch.empty_like(x) if working else None)
    assert all(len(set(row)) == k for row in found.flatten(0, -2).tolist())
    torch.testing.assert_close(x.gather(-1, found), x.topk(k, -1).values, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("recorded", [False, True])
def test_scores_that_overflow(recorded: bool) -> None:
    query = torch.full((2, 2, 4, 8), 1e25, requires_grad=recorded)
    key, value = torch.full((2, 2, 800, 8), -1e25), torch.randn(2, 2, 800, 8)
    key[:, :, 5] = -1e-30
    _, weights = attend(query, key, value, backend="panels", reduce=heedful.TopK(3))
    values, keys = weights.topk(3)
    assert torch.equal(values, torch.tensor([1.0, 0, 0]).expand_as(values))
    assert bool((keys[..., 0] == 5).all())


def test_an_edit_may_use_the_scratch_memory() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 2, 7, 8), torch.randn(2, 2, 801, 8), torch.randn(2, 2, 801, 8)

    def twice(panel: heedful.Panel) -> Tensor:
        return torch.mul(panel.weights, 2, out=panel.scratch)

    asked = (heedful.TopK(3), heedful.Mass())
    plain = attend(query, key, value, backend="panels", reduce=asked)[1]
    edited = attend(query, key, value, backend="panels", reduce=asked, edit=twice)[1]
    torch.testing.assert_close(edited.topk(3).values, 2 * plain.topk(3).values, rtol=0, atol=0)
    assert torch.equal(edited.topk(3).indices, plain.topk(3).indices)
