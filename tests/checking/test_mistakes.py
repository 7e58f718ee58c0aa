"""Every mistake of the catalogue, made again in another style, is named as itself, and nothing else is."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo import KINDS, ZOO

from heedful.checking import check
from heedful.checking.catalogue import find, mistakes

HAZARDS = [n for n in ZOO if find(n).hazard]


def test_the_zoo_has_every_entry() -> None:
    assert sorted(ZOO) == sorted(m.name for m in mistakes())
    assert len(ZOO) >= 45


@pytest.mark.parametrize("name", [n for n in ZOO if n not in HAZARDS])
def test_a_mistake_is_named_as_itself(name: str) -> None:
    found = check(ZOO[name](), kind=KINDS.get(name))
    assert [m.name for m in found.mistakes] == [name], str(found)
    assert (found.verdict, found.properties) == ("wrong", ())


@pytest.mark.parametrize("name", HAZARDS)
def test_a_hazard_is_named_and_nobody_is_accused(name: str) -> None:
    found = check(ZOO[name](), kind=KINDS.get(name))
    assert name in [h.name for h in found.hazards], str(found)
    assert (found.verdict, found.mistakes, found.properties) == ("right", (), ())
    assert (found.exit_status(), found.exit_status(strict=True)) == (0, 1)


class Fused(nn.Module):
    """Causal attention with one matrix for all three, divided by the size of a head."""

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        scale = 1 / parts.size(-1)
        return self.proj(
            functional.scaled_dot_product_attention(*parts, is_causal=True, scale=scale)
            .transpose(1, 2)
            .flatten(2)
        )


def test_the_numbers_are_those_of_one_head() -> None:
    found = check(Fused(32, 4))
    assert [m.description for m in found.mistakes] == [
        "scores are divided by 8.00 = head_dim; expected 2.83 = sqrt(head_dim)"
    ]


@pytest.mark.parametrize("blocked", [-torch.inf, -1e9])
def test_softmax_over_queries_under_a_causal_mask(blocked: float) -> None:
    """With more keys than queries some columns are blocked whole: NaN everywhere, which other mistakes explain too."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = q @ k.mT / q.size(-1) ** 0.5
        later = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        return logits.masked_fill(later, blocked).softmax(-2) @ v

    found = check(attention)
    assert ([m.name for m in found.mistakes], found.properties) == (["softmax-over-queries"], ()), str(found)
    assert "always causal, aligned to the start" in found.conventions
