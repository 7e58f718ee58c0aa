"""What no single entry describes still fails: an average, an attention that ignores its queries, and the like."""

from collections.abc import Callable

import pytest
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


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return kernel_of_elu(q, k, v)


def attend_on_the_sphere(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """QK-norm attention, with a temperature of 0.1."""
    q, k = (torch.nn.functional.normalize(x, dim=3) for x in (q, k))
    return (q @ k.mT * 10).softmax(3) @ v


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (linear_attention, "the name linear_attention says that it is linear attention."),
        (attend_on_the_sphere, "its docstring says that it is cosine attention."),
    ],
)
def test_what_says_it_is_something_else_is_not_accused(target: Callable[..., Tensor], words: str) -> None:
    found = check(target)
    assert (found.verdict, found.exit_status()) == ("could not tell", 2)
    assert found.explanation.startswith(words)


def tempered(q: Tensor, k: Tensor, v: Tensor, temperature: float = 2.0) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q / temperature, k, v)


def test_scores_that_are_off_by_a_factor() -> None:
    found = check(tempered)
    assert found.verdict == "wrong"
    assert (
        "scores are 0.5 times what they should be: 0.177 * q.k, and 1 / sqrt(head_dim) is 0.354; its parameter "
        "temperature is 2, and --set temperature=1 checks it without"
    ) in found.properties
    assert check(tempered, settings={"temperature": 1.0}).verdict == "right"
