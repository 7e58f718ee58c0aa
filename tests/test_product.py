"""The product that panels are made of, by either library."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cases import attend
from heedful import masks
from heedful.backends import _product
from heedful.backends._product import matmul

needs_onednn = pytest.mark.skipif(
    not _product.suits(torch.float32, torch.device("cpu")), reason="oneDNN is not quicker on this processor"
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which library multiplied, in order; every product is large enough for oneDNN."""
    found: list[str] = []
    monkeypatch.setattr(_product, "WORTHWHILE", 1)
    monkeypatch.setattr(_product, "WORTHWHILE_IN_PLACE", 1)
    by_onednn = _product._by_onednn

    def told(*args: object) -> bool:
        found.append("oneDNN" if by_onednn(*args) else "torch")
        return found[-1] == "oneDNN"

    monkeypatch.setattr(_product, "_by_onednn", told)
    return found


def transposed(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


def some_of(x: Tensor) -> Tensor:
    """The same numbers, a stretch of rows of a longer tensor, as a window leaves it."""
    longer = torch.full((*x.shape[:-2], x.shape[-2] + 9, x.shape[-1]), torch.nan)
    longer[..., 4:-5, :] = x
    return longer[..., 4:-5, :]


def with_gaps(x: Tensor) -> Tensor:
    wider = torch.full((*x.shape[:-1], x.shape[-1] + 3), torch.nan)
    wider[..., :-3] = x
    return wider[..., :-3]


def spread(x: Tensor) -> Tensor:
    """Rows that are all the same memory."""
    return x[..., :1, :].expand(x.shape)


LAYOUTS = {"plain": lambda x: x, "transposed": transposed, "rows of a longer one": some_of}


@needs_onednn
@pytest.mark.parametrize("given", [False, True], ids=["new", "out"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("leading", [(), (1, 1), (2, 3)])
@pytest.mark.parametrize(("M", "K", "N"), [(17, 19, 150), (130, 64, 16), (33, 300, 40)])
def test_products_by_onednn(
    M: int, K: int, N: int, leading: tuple[int, ...], layout: str, given: bool, calls: list[str]
) -> None:
    leading = leading or (1,)
    x, y = torch.randn(*leading, M, K), LAYOUTS[layout](torch.randn(*leading, K, N))
    out = torch.full((*leading, M, N), torch.nan) if given else None
    found = matmul(x, y, out=out)
    assert found is out or not given
    torch.testing.assert_close(found.double(), x.double() @ y.double(), rtol=1e-5, atol=3e-5)
    torch.testing.assert_close(matmul(x.mT.contiguous().mT, y), found, rtol=1e-5, atol=3e-5)
    assert calls == ["oneDNN", "oneDNN"]


@pytest.mark.parametrize(
    "made",
    [
        lambda x, y: (x, with_gaps(y)),
        lambda x, y: (x, spread(y)),
        lambda x, y: (x[..., :15, :], y),
        lambda x, y: (x.double(), y.double()),
        lambda x, y: (x.requires_grad_(), y),
        lambda x, y: (x, torch.nn.Parameter(y)),
    ],
    ids=["gaps", "one row", "few rows", "float64", "recorded", "subclass"],
)
def test_products_that_are_left_to_torch(made: Callable, calls: list[str]) -> None:
    x, y = made(torch.randn(2, 3, 40, 30), torch.randn(2, 3, 30, 50))
    assert torch.equal(matmul(x, y), x @ y)
    assert calls == ["torch"]


@needs_onednn
def test_a_user_can_switch_it_off(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(3, 40, 30), torch.randn(3, 30, 50)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert torch.equal(matmul(x, y), x @ y)
    assert calls == ["torch"]


@needs_onednn
def test_what_a_masked_key_holds_stays_out(calls: list[str]) -> None:
    query, key, value = (torch.randn(2, 4, n, 24, requires_grad=True) for n in (150, 170, 170))
    keep = (torch.arange(170) != 5)[None].expand(2, -1)
    expected = attend(query, key, value, masks.padding(keep), backend="panels").output
    gradients = torch.autograd.grad(expected.square().sum(), (query, key, value))
    for bad in (torch.nan, torch.inf):
        with torch.no_grad():
            spoiled = [x.clone() for x in (key, value)]
            for x in spoiled:
                x[:, :, 5] = bad
        inputs = (query, *(x.requires_grad_() for x in spoiled))
        output = attend(*inputs, masks.padding(keep), backend="panels").output
        torch.testing.assert_close(output, expected)
        found = torch.autograd.grad(output.square().sum(), inputs)
        for x, y in zip(found, gradients, strict=True):
            torch.testing.assert_close(x, y)
    assert "oneDNN" in calls


@needs_onednn
@pytest.mark.parametrize("permuted", [False, True])
def test_projections_as_they_lie(permuted: bool, calls: list[str]) -> None:
    """(B, L, H, E) in memory is what a projection gives: its heads have gaps, and are copied once."""

    def made(n: int) -> Tensor:
        x = torch.randn(2, n, 3, 20).transpose(1, 2)
        return x if permuted else x.contiguous()

    query, key, value = made(150), made(170), made(170)
    output = attend(query, key, value, masks.causal(), backend="panels").output
    exact = attend(query.double(), key.double(), value.double(), masks.causal(), backend="reference").output
    torch.testing.assert_close(output.double(), exact, rtol=1e-5, atol=1e-5)
    assert set(calls) == {"oneDNN"}
