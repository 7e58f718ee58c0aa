"""The rules of the mathematics, each a test with the rule for a name, on every backend."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import heedful
from calls import causal
from cases import Case, attend, every_backend, made
from heedful import backends, masks
from heedful.backends.panels import plan

B, H, G, L, S, E, Ev = 2, 6, 3, 5, 7, 4, 3


@pytest.fixture
def qkv() -> tuple[Tensor, Tensor, Tensor]:
    sizes = [(B, H, L, E), (B, G, S, E), (B, G, S, Ev)]
    return tuple(torch.randn(size, requires_grad=True) for size in sizes)


def per_query_head(x: Tensor) -> Tensor:
    return x.repeat_interleave(H // G, 1)


@every_backend
def test_masked_pairs_never_influence_anything(qkv: tuple, backend: str) -> None:
    """Not the output, not an answer, not a gradient: whatever key 3 holds, queries that cannot see it give the same."""
    query, key, value = qkv
    keep = (torch.arange(S) != 3).expand(L, S)

    def results(key: Tensor, value: Tensor) -> list[Tensor]:
        output, weights = attend(query, key, value, keep, backend=backend)
        answers = [
            output,
            weights.full(),
            weights.entropy(),
            weights.logsumexp(),
            weights.received(),
            weights.topk(2).values,
        ]
        return answers + list(
            torch.autograd.grad(output.sin().sum() + weights.entropy().sum(), [query, key, value])
        )

    expected = results(key, value)
    for number in (1e30, torch.nan, torch.inf, -torch.inf):
        spoiled = (
            torch.where((torch.arange(S) == 3)[:, None], number, key),
            torch.where((torch.arange(S) == 3)[:, None], number, value),
        )
        for found, wanted in zip(results(*spoiled), expected, strict=True):
            torch.testing.assert_close(found, wanted)
    assert not expected[-1][:, :, 3].any()
    assert not expected[-2][:, :, 3].any()


@every_backend
def test_a_query_that_sees_nothing_has_output_0_weights_0_gradient_0_logsumexp_minus_inf_entropy_0(
    qkv: tuple, backend: str
) -> None:
    keep = torch.ones(L, S, dtype=torch.bool)
    keep[2] = False
    query, key, value = qkv
    output, weights = attend(query, key, value, keep, backend=backend)
    torch.autograd.backward([output.sin().sum() + weights.entropy().sum() + weights.full().sum()])
    empty = [output, weights.full(), weights.entropy(), weights.mean_distance(), query.grad]
    for x in empty:
        assert x.isfinite().all()
        assert not x[:, :, 2].any()
        assert x[:, :, [0, 1, 3, 4]].any()
    assert torch.equal(weights.logsumexp().isinf(), (torch.arange(L) == 2).expand(B, H, L))
    assert (weights.logsumexp()[:, :, 2] == -torch.inf).all()
    assert (weights.max_logit()[:, :, 2] == -torch.inf).all()
    values, indices = weights.topk(3)
    assert not values[:, :, 2].any()
    assert (indices[:, :, 2] == -1).all()
    assert key.grad.isfinite().all()
    assert value.grad.isfinite().all()


@every_backend
def test_scale_softcap_bias_mask_sink_softmax_edit_dropout_in_this_order(qkv: tuple, backend: str) -> None:
    query, key, value = (x.detach() for x in qkv)
    bias, sinks, keep = torch.randn(H, L, S)[None], torch.randn(H), torch.arange(S) < 6
    scale, softcap, dropout_p = 1.7, 0.9, 0.3
    output, weights = attend(
        query, key, value, keep.expand(L, S), scale=scale, softcap=softcap, attn_bias=bias, sinks=sinks,
        edit=heedful.ablate(1), dropout_p=dropout_p, backend=backend,
    )  # fmt: skip
    scores = query @ per_query_head(key).mT * scale
    scores = softcap * torch.tanh(scores / softcap)
    scores = (scores + bias).masked_fill(~keep, -torch.inf)
    with_sink = torch.cat([scores, sinks[:, None, None].expand(B, H, L, 1)], -1)
    expected = with_sink.softmax(-1)[..., :-1]
    expected = torch.where((torch.arange(H) == 1)[:, None, None], 0, expected)
    torch.testing.assert_close(weights.full(), expected)

    # Which weights are dropped is read from a call whose values are the identity.
    torch.manual_seed(1)
    output, _ = attend(query, key, value, keep.expand(L, S), scale=scale, softcap=softcap, attn_bias=bias, sinks=sinks,
                       edit=heedful.ablate(1), dropout_p=dropout_p, backend=backend)  # fmt: skip
    torch.manual_seed(1)
    kept, _ = attend(query, key, torch.eye(S).expand(B, G, S, S), dropout_p=dropout_p, backend=backend)
    torch.testing.assert_close(
        output, torch.where(kept == 0, 0, expected / (1 - dropout_p)) @ per_query_head(value)
    )


@every_backend
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_in_float32_inside(dtype: torch.dtype, backend: str) -> None:
    query, key, value = (
        torch.randn(B, H, L, E).to(dtype),
        torch.randn(B, G, S, E).to(dtype),
        torch.ones(B, G, S, Ev).to(dtype),
    )
    output, weights = attend(query, key, value, backend=backend)
    exact = attend(query.float(), key.float(), value.float(), backend="reference").weights
    assert output.dtype == dtype
    assert torch.equal(
        output, torch.ones_like(output)
    )  # weights that are not rounded to halves still sum to 1
    for answer, expected in ((weights.full(), exact.full()), (weights.logsumexp(), exact.logsumexp())):
        assert answer.dtype == torch.float32
        torch.testing.assert_close(answer, expected)


@every_backend
def test_float64_stays(backend: str) -> None:
    query, key, value = (torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(3))
    output, weights = attend(query, key, value, backend=backend)
    answers = [
        output,
        weights.full(),
        weights.entropy(),
        weights.received(),
        weights[..., 0, :],
        weights.topk(2).values,
    ]
    assert {x.dtype for x in answers} == {torch.float64}
    assert (weights.sum(-1) - 1).abs().max() < 1e-14


@every_backend
def test_logsumexp_is_the_natural_log_of_the_whole_denominator_the_sink_included(
    qkv: tuple, backend: str
) -> None:
    query, key, value = qkv
    scores = query @ per_query_head(key).mT * E**-0.5
    sinks = torch.randn(H)
    _, weights = attend(query, key, value, backend=backend)
    torch.testing.assert_close(weights.logsumexp(), scores.exp().sum(-1).log())
    _, weights = attend(query, key, value, sinks=sinks, backend=backend)
    torch.testing.assert_close(weights.logsumexp(), (scores.exp().sum(-1) + sinks.exp()[:, None]).log())
    torch.testing.assert_close(weights.sum(-1) + weights.sink_share(), torch.ones(B, H, L))


@every_backend
def test_the_logsumexp_of_a_sink_alone_is_the_sink(qkv: tuple, backend: str) -> None:
    sinks = torch.tensor([0.5, 100.0, -3.0, 0.0, 1.0, 2.0])
    _, weights = attend(*qkv, masks.prefix(0), sinks=sinks, backend=backend)
    torch.testing.assert_close(weights.logsumexp(), sinks[:, None].expand(B, H, L))
    torch.testing.assert_close(weights.sink_share(), torch.ones(B, H, L))


@every_backend
def test_max_logit_is_before_the_sink(qkv: tuple, backend: str) -> None:
    query, key, value = qkv
    _, weights = attend(query, key, value, sinks=torch.full((H,), 100.0), backend=backend)
    torch.testing.assert_close(weights.max_logit(), (query @ per_query_head(key).mT * E**-0.5).amax(-1))


@every_backend
def test_entropy_is_minus_sum_p_ln_p_of_the_weights_as_returned(qkv: tuple, backend: str) -> None:
    for arguments in (
        {},
        {"sinks": torch.randn(H)},
        {"edit": heedful.without_sink()},
        {"edit": heedful.ablate(0)},
        {"dropout_p": 0.5},
    ):
        _, weights = attend(*qkv, masks.causal(), backend=backend, **arguments)
        p = weights.full()
        torch.testing.assert_close(weights.entropy(), torch.special.entr(p).sum(-1))


@every_backend
def test_query_heads_of_one_group_are_neighbors(backend: str) -> None:
    """Head h uses key head h // (H / G): 0, 0, 1, 1 and not 0, 1, 0, 1."""
    value = torch.arange(2.0).view(1, 2, 1, 1).expand(3, 2, 5, 1)
    output, weights = attend(torch.randn(3, 4, 6, 2), torch.randn(3, 2, 5, 2), value, backend=backend)
    torch.testing.assert_close(output, torch.tensor([0.0, 0.0, 1.0, 1.0]).view(4, 1, 1).expand(3, 4, 6, 1))
    assert weights.received(per="kv_head").shape == (3, 2, 5)
    torch.testing.assert_close(
        weights.received(per="kv_head"), weights.received().unflatten(1, (2, 2)).sum(2)
    )


@dataclass(frozen=True)
class Unheard(heedful.Reduction):
    """A reduction that no backend can know: the weight on even keys."""

    def panel(self, panel: heedful.Panel) -> Tensor:
        return (panel.weights * (panel.keys % 2 == 0)).sum(-1)


def test_the_backend_is_chosen_without_looking_at_reduce(qkv: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    choose = backends.choose
    monkeypatch.setattr(
        backends, "choose", lambda call, backend: seen.append(choose(call, backend)) or seen[-1]
    )
    for reduce in ((), heedful.Entropy(), Unheard(), [heedful.TopK(2), Unheard()]):
        heedful.scaled_dot_product_attention(*qkv, reduce=reduce)
    assert len(seen) == 4
    assert len(set(seen)) == 1


@every_backend
def test_a_reduction_the_backend_does_not_know_is_answered_all_the_same(qkv: tuple, backend: str) -> None:
    output, weights = attend(*qkv, masks.causal(), reduce=Unheard(), backend=backend)
    torch.testing.assert_close(weights.reduce(Unheard())[0], weights.full()[..., ::2].sum(-1))
    assert torch.equal(output, attend(*qkv, masks.causal(), backend=backend).output)
    output.sum().backward()


@every_backend
def test_dropout_takes_one_number_from_the_generator_per_call(qkv: tuple, backend: str) -> None:
    torch.manual_seed(5)
    torch.randint(2**31, ())
    expected = torch.get_rng_state()
    torch.manual_seed(5)
    attend(*qkv, dropout_p=0.3, backend=backend)
    assert torch.equal(torch.get_rng_state(), expected)
    attend(*qkv, dropout_p=0.0, backend=backend)
    assert torch.equal(torch.get_rng_state(), expected)


def dropped(
    L: int, S: int, backend: str, p: float = 0.4, heads: int = 3, queries: slice = slice(None)
) -> Tensor:
    """What dropout does to uniform weights, (2, heads, L, S): 0 where dropped, 1 / (1 - p) where kept."""
    torch.manual_seed(9)
    zeros = torch.zeros(2, heads, S, 1)
    query = torch.zeros(2, heads, L, 1)
    output, weights = attend(
        query[:, :, queries], zeros, torch.eye(S).expand(2, heads, S, S), dropout_p=p, backend=backend
    )
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
    return output * S


@every_backend
def test_dropout_is_the_same_whatever_the_backend_the_panels_and_the_threads(backend: str) -> None:
    L, S = 150, 40
    expected = dropped(L, S, "reference")
    torch.testing.assert_close(dropped(L, S, backend), expected)
    few = dropped(L, S, backend, queries=slice(0, 20))  # fewer queries, other panels, same pairs
    torch.testing.assert_close(few, expected[:, :, :20])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert torch.equal(dropped(L, S, backend), dropped(L, S, backend))
        torch.testing.assert_close(dropped(L, S, backend), expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_dropout_is_the_same_for_panels_of_any_size(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = dropped(150, 40, "reference")
    monkeypatch.setattr(plan, "ROWS", rows)
    torch.testing.assert_close(dropped(150, 40, "panels"), expected)


@every_backend
def test_dropout_drops_its_share_and_no_two_heads_or_items_alike(backend: str) -> None:
    p, L, S = 0.4, 50, 60
    found = dropped(L, S, backend, p)
    assert {0.0, round(1 / (1 - p), 4)} == {round(x, 4) for x in found.unique().tolist()}
    share = float((found == 0).float().mean())
    assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / found.numel())  # five standard deviations
    patterns = (found == 0).flatten(0, 1).flatten(1).float()
    alike = torch.corrcoef(patterns) - torch.eye(len(patterns))
    assert alike.abs().max() < 5 / math.sqrt(L * S)


@every_backend
def test_the_gradient_drops_what_the_output_dropped(qkv: tuple, backend: str) -> None:
    query, key, value = qkv

    def f(value: Tensor) -> Tensor:
        torch.manual_seed(2)
        return attend(query, key, value, masks.causal(), dropout_p=0.5, backend=backend).output

    weights = torch.autograd.functional.jacobian(
        f, torch.zeros_like(value)
    )  # d output / d value are the kept weights
    torch.testing.assert_close(
        torch.einsum("bhlebgsf,bgsf->bhle", weights, value),
        f(value),
        msg=lambda text: f"output is linear in value: {text}",
    )
    query_grad, key_grad = torch.autograd.grad(f(value).sin().sum(), [query, key])
    dense_keep = torch.einsum("bhlebhse->bhls", weights.repeat_interleave(H // G, 5)) != 0
    scores = (query @ per_query_head(key).mT * E**-0.5).masked_fill(
        ~torch.ones(L, S).tril(S - L).bool(), -torch.inf
    )
    output = (scores.softmax(-1) * dense_keep / 0.5) @ per_query_head(value)
    for found, expected in zip(
        (query_grad, key_grad), torch.autograd.grad(output.sin().sum(), [query, key]), strict=True
    ):
        torch.testing.assert_close(found, expected)


@every_backend
def test_a_bias_of_minus_infinity_is_a_mask(qkv: tuple, backend: str) -> None:
    keep = torch.rand(L, S) < 0.5
    bias = torch.zeros(L, S).masked_fill(~keep, -torch.inf)
    by_bias, by_mask = attend(*qkv, attn_bias=bias, backend=backend), attend(*qkv, keep, backend=backend)
    torch.testing.assert_close(by_bias.output, by_mask.output)
    for question in ("entropy", "logsumexp", "max_logit", "received", "full"):
        torch.testing.assert_close(getattr(by_bias.weights, question)(), getattr(by_mask.weights, question)())
    torch.testing.assert_close(by_bias.weights.received("mean"), by_mask.weights.received("mean"))


@every_backend
def test_positions_put_the_last_query_at_the_last_key_unless_query_start_says_otherwise(backend: str) -> None:
    case = Case("positions", mask=lambda c: masks.causal(), keep=causal)
    inputs = made(case, torch.float32).inputs()
    arguments = inputs["query"], inputs["key"], inputs["value"], masks.causal()
    seen = [
        attend(*arguments, query_start=start, backend=backend).weights.full() > 0
        for start in (None, 2, 0, torch.tensor([2, 0]))
    ]
    end, start = torch.ones(5, 7, dtype=torch.bool).tril(2), torch.ones(5, 7, dtype=torch.bool).tril(0)
    assert torch.equal(seen[0], end.expand(2, 4, 5, 7))
    assert torch.equal(seen[1], seen[0])
    assert torch.equal(seen[2], start.expand(2, 4, 5, 7))
    assert torch.equal(seen[3], torch.stack([end, start])[:, None].expand(2, 4, 5, 7))
