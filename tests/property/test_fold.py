"""The fold does not depend on how it is cut: any call, in panels of any size, equals the definition."""

from unittest import mock

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import heedful
from cases import attend
from heedful.backends import NAMES
from heedful.backends.panels import plan
from heedful.masks import _algebra
from mask_rules import Sizes, rules, sizes

ASKED = (
    heedful.Entropy(),
    heedful.LogSumExp(),
    heedful.MaxLogit("head"),
    heedful.TopK(2),
    heedful.Received("mean"),
    heedful.Received("max"),
    heedful.DistanceProfile(),
    heedful.Pooled(2, 2),
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[Sizes, dict[str, Tensor], dict]:
    """Tensors of a call, and the rest of its arguments."""
    n = draw(sizes())
    group = draw(st.integers(1, n.H))
    G = n.H if n.H % group else n.H // group
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    leaves = {
        "query": numbers(n.B, n.H, n.L, 3),
        "key": numbers(n.B, G, n.S, 3),
        "value": numbers(n.B, G, n.S, 2),
    }
    arguments = {
        "mask": draw(st.none() | rules(n, 2).map(lambda rule: rule.mask)),
        "query_start": n.query_start,
    }
    if draw(st.booleans()):
        shape = [size if draw(st.booleans()) else 1 for size in (n.B, n.H, n.L, n.S)]
        bias = numbers(*shape)
        hidden = draw(st.sampled_from([0, 0.3]))
        leaves["attn_bias"] = bias.masked_fill(torch.rand(shape, generator=generator) < hidden, -torch.inf)
    if draw(st.booleans()):
        leaves["sinks"] = numbers(n.H)
    arguments["softcap"] = draw(st.none() | st.floats(0.5, 5))
    arguments["edit"] = draw(st.none() | st.just(heedful.ablate(0)) | st.just(heedful.without_sink()))
    return n, leaves, arguments


def results(leaves: dict[str, Tensor], arguments: dict, backend: str) -> list[Tensor]:
    """Output, answers, and the gradients through all of them."""
    leaves = {name: x.clone().requires_grad_() for name, x in leaves.items()}
    output, weights = attend(**leaves, **arguments, reduce=ASKED, backend=backend)
    answers = [output]
    for answer in weights.reduce(*ASKED):
        answers += [answer] if isinstance(answer, Tensor) else [answer.values]
    generator = torch.Generator().manual_seed(1)
    finite = [x.masked_fill(x.isinf(), 0) for x in answers]
    loss = sum((x * torch.randn(x.shape, generator=generator, dtype=x.dtype)).sum() for x in finite)
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return answers + [
        torch.zeros_like(x) if g is None else g for x, g in zip(leaves.values(), grads, strict=True)
    ]


@given(calls(), st.integers(1, 4), st.integers(1, 40), st.integers(1, 4), st.sampled_from(NAMES))
def test_panels_of_any_size_equal_the_definition(
    call: tuple, rows: int, elements: int, piece: int, backend: str
) -> None:
    n, leaves, arguments = call
    if n.S < 2:
        arguments = {**arguments, "edit": None}
    expected = results(leaves, arguments, "reference")
    with (
        mock.patch.object(plan, "ROWS", rows),
        mock.patch.object(plan, "ELEMENTS", {"cpu": elements}),
        mock.patch.object(_algebra, "PIECE", piece),
    ):
        found = results(leaves, arguments, backend)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)
