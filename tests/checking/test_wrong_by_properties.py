"""What no single entry describes still fails: an average, an attention that ignores its queries, and the like."""

import torch
from torch import Tensor

from heedful.checking import check


def mean_of_values(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return v.mean(2, keepdim=True).expand(-1, -1, q.size(2), -1)


def ignores_its_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (k.sum(3) / k.size(3) ** 0.5).softmax(2)
    return (weights.unsqueeze(2) @ v).expand(-1, -1, q.size(2), -1)


def right_for_equal_lengths_only(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if q.size(2) == k.size(2):
        return (q @ k.mT / q.size(3) ** 0.5).softmax(3) @ v
    return torch.zeros(*q.shape[:3], v.size(3))


def cosine_similarity(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (torch.nn.functional.normalize(q, dim=3) @ torch.nn.functional.normalize(k, dim=3).mT).softmax(
        3
    ) @ v


def test_an_average_is_not_attention() -> None:
    assert [m.name for m in check(mean_of_values).mistakes] == ["operands-query-ignored"]


def test_an_attention_that_ignores_its_queries_fails() -> None:
    found = check(ignores_its_queries)
    assert (found.verdict, found.mistakes) == ("wrong", ())
    assert "the query changes nothing" in found.properties
    assert "all weights are positive, and rows sum to 1" in found.properties


def test_equal_lengths_only_fails() -> None:
    found = check(right_for_equal_lengths_only)
    assert [m.name for m in found.mistakes] == ["operands-equal-lengths"]
    assert "give a wrong answer" in found.mistakes[0].description


def test_an_unknown_attention_is_described() -> None:
    found = check(cosine_similarity)
    assert (found.verdict, found.mistakes, found.exit_status()) == ("wrong", (), 1)
    assert found.properties[0] == "no known mistake, and no pair of them, reproduces the answer"
    assert any(p.startswith("the scores that fit its weights") for p in found.properties)


def kernel_of_elu(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    weights = (torch.nn.functional.elu(q) + 1) @ (torch.nn.functional.elu(k) + 1).mT
    weights = weights if mask is None else weights * mask
    return weights / weights.sum(3, keepdim=True) @ v


def test_linear_attention_is_no_known_mistake() -> None:
    found = check(kernel_of_elu)
    assert (found.verdict, found.mistakes, found.hazards) == ("wrong", (), ()), str(found)
    assert "all weights are positive, and rows sum to 1" in found.properties
