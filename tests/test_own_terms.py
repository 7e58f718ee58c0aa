"""Biases, edits and reductions of the caller's own: what they may be made of, and what they must return."""

import pytest
import torch
from torch import Tensor

import heedful
from cases import attend, every_backend
from heedful import masks, scaled_dot_product_attention
from heedful._rows import Rows
from heedful.reductions import Full, Panel, Reduction

B, H, L, S, E = 2, 4, 6, 9, 8


def inputs(**options) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(B, H, n, E, **options) for n in (L, S, S)]


class Slope:
    """A bias with a parameter, which it does not name, for keys from `first` on."""

    def __init__(self, slope: Tensor | None = None, first: int = 0) -> None:
        self.slope = torch.nn.Parameter(torch.tensor(0.3)) if slope is None else slope
        self.first = first

    def bias(self, rows: Rows, keys: range) -> Tensor:
        place = rows.key_positions(keys)
        slope = torch.where(place >= self.first, self.slope, 0) if keys.stop > self.first else torch.zeros(())
        return (slope * (place - rows.positions))[None, None]


class Misnamed(Slope):
    tensors = (torch.ones(3),)


@pytest.mark.parametrize("backend", ["native", "panels"])
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("term", [Slope(), Slope(first=3), Misnamed()], ids=["unnamed", "late", "misnamed"])
def test_a_bias_that_hides_a_parameter_is_refused(term: Slope, recorded: bool, backend: str) -> None:
    """Else the parameter would have no gradient, and nobody would know."""
    tensors = inputs(requires_grad=recorded)
    with pytest.raises(
        TypeError, match=r"\.bias\(\) is made of a tensor that requires a gradient.*`tensors`"
    ):
        attend(*tensors, attn_bias=term, backend=backend)
    with torch.no_grad():
        attend(*tensors, attn_bias=term, backend=backend)


def test_torch_func_finds_what_a_bias_hides() -> None:
    def loss(slope: Tensor) -> Tensor:
        return scaled_dot_product_attention(*inputs(), attn_bias=Slope(slope)).output.square().sum()

    slope = torch.tensor(0.3, requires_grad=True)
    bias = slope * (torch.arange(S) - torch.arange(S - L, S)[:, None])
    output = attend(*inputs(), attn_bias=bias, backend="reference").output
    expected = torch.autograd.grad(output.square().sum(), slope)[0]
    torch.testing.assert_close(torch.func.grad(loss)(torch.tensor(0.3)), expected)


@every_backend
def test_a_bias_that_names_its_parameter_trains_it(backend: str) -> None:
    term = Slope()
    term.tensors = (term.slope,)  # pyright: ignore[reportAttributeAccessIssue]
    attend(*inputs(), attn_bias=term, backend=backend).output.square().sum().backward()
    expected = torch.nn.Parameter(torch.tensor(0.3))
    bias = expected * (torch.arange(S) - torch.arange(S - L, S)[:, None])
    attend(*inputs(), attn_bias=bias, backend="reference").output.square().sum().backward()
    torch.testing.assert_close(term.slope.grad, expected.grad)


def test_an_edit_that_hides_a_parameter_is_refused_where_it_would_not_learn() -> None:
    gate = torch.nn.Parameter(torch.tensor(0.5))

    def gated(panel: Panel) -> Tensor:
        return panel.weights * gate

    tensors = inputs(requires_grad=True)
    with pytest.raises(TypeError, match=r"gated is made of a tensor that requires a gradient.*`tensors`"):
        scaled_dot_product_attention(*tensors, edit=gated)
    with torch.no_grad():
        scaled_dot_product_attention(*tensors, edit=gated)
    gated.tensors = (gate,)  # pyright: ignore[reportFunctionMemberAccess]
    output = scaled_dot_product_attention(*tensors, edit=gated).output
    expected = scaled_dot_product_attention(*tensors).output.sum()
    torch.testing.assert_close(torch.autograd.grad(output.sum(), gate)[0], expected)


def test_an_edit_may_read_values_that_learn() -> None:
    def short(panel: Panel) -> Tensor:
        return panel.weights / panel.value_norms[..., None, :]

    (query, key, value), copies = inputs(requires_grad=True), inputs(requires_grad=True)
    found = [scaled_dot_product_attention(query, key, value, edit=short).output]
    found += torch.autograd.grad(found[0].sum(), (query, key, value))
    weights = (copies[0] @ copies[1].mT * E**-0.5).softmax(-1) / copies[2].norm(dim=-1)[..., None, :]
    expected = [weights @ copies[2]]
    expected += torch.autograd.grad(expected[0].sum(), copies)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


class Given:
    """A bias that returns what it was given."""

    def __init__(self, block: object) -> None:
        self.block = block

    def bias(self, rows: Rows, keys: range) -> object:
        return self.block


@pytest.mark.parametrize("backend", ["native", "panels"])
@pytest.mark.parametrize(
    ("block", "shown"),
    [
        (torch.zeros(3, 3), r"float32 \(3, 3\) on cpu"),
        (torch.zeros(1, 3, 1, 1), r"float32 \(1, 3, 1, 1\) on cpu"),
        (torch.zeros(1, 1, 1, 1, 1), r"float32 \(1, 1, 1, 1, 1\) on cpu"),
        (torch.zeros(1, 1, dtype=torch.bool), r"bool \(1, 1\) on cpu"),
        (torch.zeros(1, 1, device="meta"), r"float32 \(1, 1\) on meta"),
        (1.5, "1.5"),
        (None, "None"),
    ],
)
def test_a_bias_must_return_numbers_that_fit(block: object, shown: str, backend: str) -> None:
    with pytest.raises(
        ValueError, match=rf"attn_bias: Given.bias\(\) must return a tensor of numbers.*got {shown}\.$"
    ):
        attend(*inputs(), attn_bias=Given(block), backend=backend)


@every_backend
@pytest.mark.parametrize("shape", [(), (1, 1), (H, 1, 1), (B, 1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_a_bias_may_repeat_and_have_a_dtype_of_its_own(
    shape: tuple, dtype: torch.dtype, backend: str
) -> None:
    block = torch.arange(1, 1 + torch.Size(shape).numel()).view(shape).to(dtype)
    weights = attend(*inputs(), attn_bias=Given(block), backend=backend).weights
    expected = attend(*inputs(), backend="reference").weights
    torch.testing.assert_close(
        weights.logsumexp(), expected.logsumexp() + block.float().expand(B, H, 1, 1)[..., 0]
    )


@every_backend
@pytest.mark.parametrize(
    "term", [torch.ones(B, H, 1, 1), Given(torch.ones(1, 1, 1, 1))], ids=["tensor", "object"]
)
def test_a_bias_that_repeats_along_keys_that_lie_apart(term: object, backend: str) -> None:
    query, key, value = (torch.randn(B, H, n, 8) for n in (20, 700, 700))
    mask = masks.prefix(4) | masks.window(16)
    found = attend(query, key, value, mask, attn_bias=term, backend=backend)
    expected = attend(query, key, value, mask, backend="reference")
    torch.testing.assert_close(found.output, expected.output)
    torch.testing.assert_close(found.weights.logsumexp(), expected.weights.logsumexp() + 1)


class Counted(Reduction):
    def panel(self, panel: Panel) -> Tensor:
        return panel.weights.sum(-1)


@pytest.mark.parametrize(("name", "value"), [("place", "cols"), ("merge", "min")])
def test_a_reduction_says_where_its_answer_belongs_and_how_it_merges(name: str, value: str) -> None:
    wrong = type("Wrong", (Counted,), {name: value})()
    with pytest.raises(ValueError, match=rf"Wrong\.{name} must be one of .*, got '{value}'"):
        scaled_dot_product_attention(*inputs(), reduce=wrong)


@pytest.mark.parametrize("backend", ["panels", "native"])
def test_a_reduction_must_return_a_tensor(backend: str) -> None:
    wrong = type("Wrong", (Counted,), {"panel": lambda self, panel: None})()
    with pytest.raises(ValueError, match=r"Wrong\.panel\(\) has place 'rows' and must return .*got NoneType"):
        attend(*inputs(), reduce=wrong, backend=backend)


class Halved(heedful.Received):
    def panel(self, panel: Panel) -> Tensor:
        return super().panel(panel) / 2


class First(heedful.TopK):
    def finish(self, total, call):
        return super().finish(total, call).indices[..., 0]


@every_backend
def test_a_reduction_made_from_one_of_ours_answers_in_its_own_way(backend: str) -> None:
    weights = attend(*inputs(), reduce=(Halved(), First(3)), backend=backend).weights
    halved, first = weights.reduce(Halved(), First(3))
    torch.testing.assert_close(halved, weights.received() / 2)
    assert torch.equal(first, weights.topk(2).indices[..., 0])


class Doubled(heedful.ByKey):
    def panel(self, panel: Panel) -> Tensor:
        return super().panel(panel) * 2


class Total(heedful.Received):
    def finish(self, total, call):
        return super().finish(total, call).sum(-1)


class RowMass(Full):
    def panel(self, panel: Panel) -> Tensor:
        return panel.weights.sum(-1)


@every_backend
def test_a_reduction_made_from_one_of_ours_is_another(backend: str) -> None:
    groups = torch.arange(S) % 3
    weights = attend(*inputs(), reduce=(Doubled(groups), heedful.ByKey(groups)), backend=backend).weights
    doubled, plain = weights.reduce(Doubled(groups), heedful.ByKey(groups))
    torch.testing.assert_close(doubled, 2 * plain)
    torch.testing.assert_close(plain.sum(-1), torch.ones(B, H, L))
    assert Doubled(groups) == Doubled(groups) != heedful.ByKey(groups)


@every_backend
def test_reductions_of_ones_own_without_keys(backend: str) -> None:
    query, key, value = inputs()
    none = torch.zeros(0, dtype=torch.int64)
    asked = (Doubled(none), Total(), RowMass(), Counted(), Halved(), heedful.ByKey(none))
    answers = attend(query, key[:, :, :0], value[:, :, :0], reduce=asked, backend=backend).weights.reduce(
        *asked
    )
    shapes = [tuple(answer.shape) for answer in answers]
    assert shapes == [(B, H, L, 0), (B, H), (B, H, L), (B, H, L), (B, H, 0), (B, H, L, 0)]
    assert all(not answer.any() for answer in answers)


class Past(masks.Mask):
    """A causal mask that says it its own way."""

    def __init__(self, say) -> None:
        self.say = say

    def block(self, rows: Rows, keys: range):
        return self.say(rows.key_positions(keys) <= rows.positions)


@every_backend
@pytest.mark.parametrize(
    ("say", "shown"),
    [
        (lambda seen: seen.float(), "float32 "),
        (lambda seen: seen.long(), "int64 "),
        (lambda seen: seen.numpy(), "array"),
        (lambda seen: None, "None"),
        (lambda seen: seen[..., :3], "bool "),
    ],
    ids=["float", "integer", "numpy", "nothing", "too few keys"],
)
def test_a_mask_must_return_bools_that_fit(say, shown: str, backend: str) -> None:
    for mask in (Past(say), ~Past(say), Past(say) & masks.prefix(4), masks.window(2) | Past(say)):
        with pytest.raises(
            TypeError, match=rf"mask: Past\.block\(\) must return True, False, or a bool.*got {shown}"
        ):
            attend(*inputs(), mask, backend=backend)
    found = attend(*inputs(), Past(lambda seen: seen), backend=backend).output
    torch.testing.assert_close(found, attend(*inputs(), masks.causal(), backend=backend).output)


@pytest.mark.parametrize("backend", ["native", "panels"])
def test_a_parametrized_bias_learns_or_is_refused(backend: str) -> None:
    term = heedful.RelativeBias(H)
    torch.nn.utils.parametrizations.weight_norm(term)
    with pytest.raises(TypeError, match=r"tensors are made anew.*parametrize.cached\(\)"):
        attend(*inputs(), attn_bias=term, backend=backend)
    with torch.no_grad():
        attend(*inputs(), attn_bias=term, backend=backend)
    with torch.nn.utils.parametrize.cached():
        attend(*inputs(), attn_bias=term, backend=backend).output.square().sum().backward()
    for parameter in term.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0


@every_backend
def test_biases_may_be_a_list(backend: str) -> None:
    terms = [heedful.Alibi(H), torch.randn(L, S)]
    found, expected = (attend(*inputs(), attn_bias=x, backend=backend).output for x in (terms, tuple(terms)))
    assert torch.equal(found, expected)


@every_backend
@pytest.mark.parametrize("batch", [(2, 1), (1, 3), (2, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("heads", [1, H])
def test_a_mask_or_bias_for_several_batch_sizes(batch: tuple[int, int], heads: int, backend: str) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, H, n, E) for n in (L, S, S))
    bias = torch.randn(*batch, heads, L, S)
    for given in ({"attn_bias": bias}, {"mask": bias > 0}):
        full = {name: x.expand(2, 3, H, L, S) for name, x in given.items()}
        found, expected = (attend(query, key, value, **x, backend=backend) for x in (given, full))
        torch.testing.assert_close(found.output, expected.output)
        torch.testing.assert_close(found.weights.full(), expected.weights.full())
    with pytest.raises(
        ValueError, match=r"attn_bias must be \(L, S\) or \(2, 3, H, L, S\).*got \(3, 2, 1, 6, 9\)"
    ):
        attend(query, key, value, attn_bias=torch.randn(3, 2, 1, L, S), backend=backend)
