"""Whatever a masked key or value slot holds, NaN and infinity included, it influences nothing."""

import pytest
import torch
from torch import Tensor

from calls import LONGER, MASKS, causal, with_rule
from cases import Case, Made, attend, every, every_backend, made, padded
from heedful import Entropy, LogSumExp, Received, TopK, masks
from questions import questions

POISONS = [torch.nan, torch.inf, -torch.inf]
ASKED = (Entropy(), LogSumExp(), Received(by_value_norm=True), TopK(2))

# Every case here has keys that no query of some batch item may see.
UNSEEN = [
    case
    for case in MASKS
    if case.name in ("prefix per item", "lengths, one of them 0", "padding and causal", "nobody")
]
UNSEEN += [
    Case("causal, later keys unseen", query_start=0, L=4, mask=lambda c: masks.causal(), keep=causal),
    Case("bias of -inf on keys", bias=(2, 1, 1, 7), forbid=0.5),
    Case(
        "softcap, sinks, prefix",
        softcap=2.0,
        sinks=True,
        mask=lambda c: masks.prefix(4),
        keep=lambda j, **_: j < 4,
    ),
    with_rule(
        lambda c: lambda b, j, **_: padded(c)[b, j],
        name="padding, grouped heads",
        H=6,
        G=2,
        Ev=3,
        mask=lambda c: masks.padding(padded(c)),
    ),
]


def unseen(problem: Made) -> Tensor:
    """Keys that no query of an item may see, (B, S)."""
    return ~problem.visible.any((1, 2))


def poison(x: Tensor, where: Tensor, number: float) -> Tensor:
    """A leaf with `number` in the rows of (B, G, S, ...) where (B, S) says so."""
    return x.detach().clone().masked_fill_(where[:, None, :, None], number).requires_grad_()


def run(problem: Made, inputs: dict[str, Tensor], backend: str) -> dict[str, Tensor]:
    """Output, answers, and gradients through all of them."""
    output, weights = problem.attend(inputs, backend, reduce=ASKED)
    found = {
        "output": output,
        "entropy": weights.entropy(),
        "logsumexp": weights.logsumexp(),
        "received": weights.received(by_value_norm=True),
        "topk": weights.topk(2).values,
        "weights": weights.full(),
    }
    loss = sum(x.masked_fill(x == -torch.inf, 0).sin().sum() for x in found.values())
    grads = torch.autograd.grad(loss, list(inputs.values()))
    return found | {f"{name}.grad": grad for name, grad in zip(inputs, grads, strict=True)}


@every_backend
@pytest.mark.parametrize("number", POISONS)
@pytest.mark.parametrize("where", ["key", "value", "both"])
@every(UNSEEN)
def test_an_unseen_slot_influences_nothing(case: Case, where: str, number: float, backend: str) -> None:
    problem = made(case, torch.float32)
    hidden = unseen(problem)
    assert hidden.any(), "the case hides nothing"
    clean = problem.inputs()
    clean |= {name: poison(clean[name], hidden, 0.0) for name in ("key", "value")}
    dirty = {
        **clean,
        **{name: poison(clean[name], hidden, number) for name in ("key", "value") if where in (name, "both")},
    }
    expected, found = run(problem, clean, backend), run(problem, dirty, backend)
    for name, x in found.items():
        assert torch.equal(x.isfinite(), expected[name].isfinite()), name
        torch.testing.assert_close(x, expected[name], msg=lambda text, name=name: f"{name}: {text}")


@every_backend
@pytest.mark.parametrize("number", POISONS)
@pytest.mark.parametrize("where", ["key", "value"])
def test_queries_that_see_a_bad_slot_do_not_spoil_those_that_do_not(
    where: str, number: float, backend: str
) -> None:
    """Causal attention over a NaN at key 4: queries 0 to 3 never hear of it."""
    case = Case(
        "causal, one bad key", B=2, H=4, G=2, L=7, S=7, E=6, Ev=5, mask=lambda c: masks.causal(), keep=causal
    )
    problem = made(case, torch.float32)
    bad = torch.arange(7) == 4
    clean = problem.inputs()
    dirty = {**clean, where: poison(clean[where], bad.expand(2, 7), number)}

    def results(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        output, weights = problem.attend(inputs, backend)
        loss = output[:, :, :4].sin().sum() + weights.entropy()[:, :, :4].sum()
        (grad,) = torch.autograd.grad(loss, [inputs["query"]])
        return {"output": output[:, :, :4], "entropy": weights.entropy()[:, :, :4], "grad": grad[:, :, :4]}

    expected, found = results(clean), results(dirty)
    for name, x in found.items():
        torch.testing.assert_close(x, expected[name], msg=lambda text, name=name: f"{name}: {text}")


@every_backend
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_a_visible_nan_is_not_hidden(where: str, backend: str) -> None:
    """A NaN that a query sees must show: swallowing it would hide a mistake."""
    case = Case("causal, visible NaN", L=7, S=7, mask=lambda c: masks.causal(), keep=causal)
    inputs = made(case, torch.float32).inputs()
    inputs[where] = poison(inputs[where], (torch.arange(7) == 4).expand(2, 7), torch.nan)
    output, _ = made(case, torch.float32).attend(inputs, backend)
    bad = output.isnan().any(-1)
    assert not bad[:, :, :4].any()
    assert bad[:, :, 4].all()
    assert bad[:, :, 5:].all() == (where != "query")


@every_backend
@every([case for case in LONGER if "two stretches" in case.name or "documents" in case.name])
def test_unseen_slots_in_several_panels(case: Case, backend: str) -> None:
    problem = made(case, torch.float32)
    hidden = unseen(problem)
    assert hidden.any(), "the case hides nothing"
    inputs = problem.inputs()
    expected = run(problem, inputs, backend)
    dirty = {**inputs, **{name: poison(inputs[name], hidden, torch.nan) for name in ("key", "value")}}
    found = run(problem, dirty, backend)
    for name, x in found.items():
        torch.testing.assert_close(x, expected[name], msg=lambda text, name=name: f"{name}: {text}")


@every_backend
def test_every_question_is_deaf_to_unseen_slots(backend: str) -> None:
    case = Case(
        "prefix, all questions",
        B=2,
        H=4,
        G=2,
        L=5,
        S=7,
        mask=lambda c: masks.prefix(5),
        keep=lambda j, **_: j < 5,
    )
    problem = made(case, torch.float32)
    clean = problem.inputs()
    dirty = {**clean, **{name: poison(clean[name], unseen(problem), torch.nan) for name in ("key", "value")}}
    lazy = [problem.attend(inputs, backend).weights for inputs in (clean, dirty)]
    for question in questions(2, 4, 2, 5, 7):
        expected, found = map(question.ask, lazy)
        if question.name == "value norms":
            expected, found = expected[..., :5], found[..., :5]
        torch.testing.assert_close(found, expected, msg=lambda text, q=question: f"{q.name}: {text}")


@every_backend
def test_nothing_is_lost_in_half_precision_where_a_minus_huge_mask_would_overflow(backend: str) -> None:
    query, key, value = (
        torch.full((2, 2, 3, 4), 200.0),
        torch.full((2, 2, 5, 4), 200.0),
        torch.randn(2, 2, 5, 4),
    )
    query, key, value = (x.half() for x in (query, key, value))
    output, weights = attend(query, -key, value, masks.prefix(2), backend=backend)
    torch.testing.assert_close(weights.full(), torch.tensor([0.5, 0.5, 0, 0, 0]).expand(2, 2, 3, 5))
    assert output.isfinite().all()
