"""The product that panels are made of, by either library."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from cases import attend, every_backend
from heedful import masks
from heedful._rows import Rows, all_rows
from heedful.backends import _product
from heedful.backends._product import matmul, transposed_matmul
from heedful.backends.panels import plan

needs_onednn = pytest.mark.skipif(
    not _product.suits(torch.float32, torch.device("cpu")), reason="oneDNN is not quicker on this processor"
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which library multiplied, in order; every product is large enough for oneDNN."""
    found: list[str] = []
    monkeypatch.setattr(_product, "MULTIPLICATIONS", 1)

    def told(name: str, function: Callable) -> Callable:
        def multiply(*args: Tensor, **kwargs: Tensor | None) -> Tensor:
            found.append(name)
            return function(*args, **kwargs)

        return multiply

    monkeypatch.setattr(_product, "NUMBERS", 1)
    monkeypatch.setattr(_product, "EVEN", 1)
    monkeypatch.setattr(plan, "EVEN", 1)
    for name in ("_add_convolution", "_gradient"):
        monkeypatch.setattr(_product, name, told("oneDNN", getattr(_product, name)))

    class Torch:  # for this module alone: a compiler notes down what torch's functions are when it first needs them
        matmul = staticmethod(told("torch", torch.matmul))

        def __getattr__(self, name: str) -> object:
            return getattr(torch, name)

    monkeypatch.setattr(_product, "torch", Torch())
    return found


@pytest.fixture
def two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


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
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("given", [False, True], ids=["new", "out"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("leading", [(), (1, 1), (2, 3)])
@pytest.mark.parametrize(("M", "K", "N"), [(17, 19, 150), (130, 64, 16), (33, 300, 40), (256, 30, 50)])
def test_products_by_onednn(
    M: int, K: int, N: int, leading: tuple[int, ...], layout: str, given: bool, calls: list[str]
) -> None:
    leading = leading or (1,)
    x, y = torch.randn(*leading, M, K), LAYOUTS[layout](torch.randn(*leading, K, N))
    out = torch.full((*leading, M, N), torch.nan) if given else None
    found = matmul(x, y, out=out)
    assert found is out or not given
    torch.testing.assert_close(found.double(), x.double() @ y.double(), rtol=1e-5, atol=3e-5)
    torch.testing.assert_close(matmul(transposed(x), y), found, rtol=1e-5, atol=3e-5)
    assert calls == ["oneDNN"] * 2 * math.prod(leading)


@needs_onednn
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("leading", [(1, 1), (2, 3)])
@pytest.mark.parametrize(("M", "N", "K"), [(17, 150, 19), (530, 60, 40), (33, 40, 300)])
def test_transposed_products_by_onednn(
    M: int, N: int, K: int, leading: tuple[int, ...], layout: str, calls: list[str]
) -> None:
    x, y = torch.randn(*leading, M, N), LAYOUTS[layout](torch.randn(*leading, M, K))
    found = transposed_matmul(x, y)
    torch.testing.assert_close(found.double(), x.mT.double() @ y.double(), rtol=1e-5, atol=5e-5)
    assert calls == ["oneDNN"] * math.prod(leading)


@pytest.mark.usefixtures("two_threads")
def test_transposed_products_with_one_thread(calls: list[str]) -> None:
    x, y = torch.randn(2, 3, 40, 50), torch.randn(2, 3, 40, 30)
    torch.set_num_threads(1)
    assert torch.equal(transposed_matmul(x, y), x.mT @ y)
    assert "oneDNN" not in calls


@needs_onednn
def test_only_sizes_that_meet_again(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_product, "EVEN", 64)
    for rows, keys in ((128, 192), (128, 200), (120, 192)):
        matmul(torch.randn(1, rows, 40), torch.randn(1, 40, keys))
    assert calls == ["oneDNN", "torch", "torch"]


@pytest.mark.parametrize(
    "made",
    [
        lambda x, y: (x, with_gaps(y)),
        lambda x, y: (x, spread(y)),
        lambda x, y: (x[..., :15, :], y),
        lambda x, y: (x.double(), y.double()),
        lambda x, y: (x, torch.nn.Parameter(y)),
    ],
    ids=["gaps", "one row", "few rows", "float64", "subclass"],
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


def inputs() -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, 3, n, 20, dtype=torch.float32) for n in (150, 170, 170))


def output(*tensors: Tensor) -> Tensor:
    return attend(*tensors, masks.causal(), backend="panels").output


def exact(*tensors: Tensor) -> Tensor:
    return attend(*(x.double() for x in tensors), masks.causal(), backend="reference").output


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("side", [0, 1, 2], ids=["query", "key", "value"])
def test_forward_mode(side: int, calls: list[str]) -> None:
    tensors, tangent = inputs(), inputs()[side]

    def along(function: Callable) -> Tensor:
        def of_one(x: Tensor) -> Tensor:
            return function(*tensors[:side], x, *tensors[side + 1 :])

        return torch.func.jvp(of_one, (tensors[side],), (tangent,))[1]

    torch.testing.assert_close(along(output).double(), along(exact).double(), rtol=1e-4, atol=1e-5)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(tensors[side], tangent)
        found = torch.autograd.forward_ad.unpack_dual(
            output(*tensors[:side], dual, *tensors[side + 1 :])
        ).tangent
    torch.testing.assert_close(found, along(output))


def test_a_gradient_of_a_gradient(calls: list[str]) -> None:
    query, key, value = inputs()

    def outer(function: Callable) -> Tensor:
        def inner(query: Tensor) -> Tensor:
            return torch.func.grad(lambda v: function(query, key, v).square().sum())(value).square().sum()

        return torch.func.grad(inner)(query)

    torch.testing.assert_close(outer(output), outer(exact), rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("side", [0, 2], ids=["query", "value"])
def test_vmap_over_what_autograd_records(side: int, calls: list[str]) -> None:
    tensors = [x.requires_grad_(n == side) for n, x in enumerate(inputs())]

    def mapped(x: Tensor) -> Tensor:
        return torch.vmap(lambda each: output(*tensors[:side], each, *tensors[side + 1 :]))(x[None])[0]

    (found,) = torch.autograd.grad(mapped(tensors[side]).square().sum(), tensors[side])
    (expected,) = torch.autograd.grad(exact(*tensors).square().sum(), tensors[side])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_backward_of_dual_gradients_says_that_it_cannot(calls: list[str]) -> None:
    tensors = [x.requires_grad_() for x in inputs()]
    found = output(*tensors)
    with torch.autograd.forward_ad.dual_level():
        grad = torch.autograd.forward_ad.make_dual(torch.randn_like(found), torch.randn_like(found))
        with pytest.raises((NotImplementedError, RuntimeError), match="forward AD"):
            torch.autograd.grad(found, tensors, grad)


@pytest.mark.filterwarnings("ignore")
def test_a_trace_sees_what_it_knows(calls: list[str]) -> None:
    tensors = inputs()

    def plain(*tensors: Tensor) -> Tensor:
        return attend(*tensors, backend="panels").output

    traced = torch.jit.trace(plain, tensors, check_trace=False)
    torch.testing.assert_close(traced(*tensors), plain(*tensors))


def test_modes_see_what_they_know(calls: list[str]) -> None:
    query, key, value = inputs()
    with FlopCounterMode(display=False) as counter:
        attend(query, key, value, backend="panels")
    assert counter.get_total_flops() == 2 * 2 * 2 * 3 * 150 * 170 * 20


def test_no_batch_items(calls: list[str]) -> None:
    none = torch.randn(0, 2, 600, 64, requires_grad=True)
    result = attend(none, none, none, masks.causal(), backend="panels").output
    assert result.shape == none.shape
    result.sum().backward()


@every_backend
def test_a_bias_need_not_name_tensors(backend: str) -> None:
    class Slope:
        def bias(self, rows: Rows, keys: range) -> Tensor:
            return -0.1 * (rows.positions - rows.key_positions(keys)).abs()[None, None].to(rows.dtype)

    tensors = [x.requires_grad_() for x in inputs()]
    bias = Slope().bias(all_rows(2, 3, 150, 170, 20, tensors[0]), range(170))
    found = attend(*tensors, attn_bias=Slope(), backend=backend).output
    expected = attend(*tensors, attn_bias=bias, backend="reference").output
    torch.testing.assert_close(found, expected)
    grads = (torch.autograd.grad(x.square().sum(), tensors) for x in (found, expected))
    for x, y in zip(*grads, strict=True):
        torch.testing.assert_close(x, y)


def test_an_edit_that_hides_a_parameter_reaches_it(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_product, "NUMBERS", 10**9)
    gate = torch.nn.Parameter(torch.tensor(0.5))
    query, key, value = (torch.randn(1, 1, n, 20) for n in (100, 120, 120))
    found = attend(query, key, value, edit=lambda panel: panel.weights * gate, backend="panels").output
    plain = attend(query, key, value, backend="reference").output
    torch.testing.assert_close(torch.autograd.grad(found.sum(), gate)[0], plain.sum())
