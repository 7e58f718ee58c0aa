"""A hazard is what the described inputs break, and nothing that ordinary inputs break already."""

import math

import torch
from torch import Tensor

from heedful.checking import check


def hides_the_diagonal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention. The first row is empty, and NaN whatever the scores are."""
    ahead = torch.ones(q.size(2), k.size(2), dtype=torch.bool).triu()
    scores = (q @ k.mT / math.sqrt(q.size(3))).masked_fill(ahead, -math.inf)
    return scores.softmax(-1) @ v


def test_an_empty_row_is_no_overflow() -> None:
    found = check(hides_the_diagonal)
    assert [m.name for m in found.mistakes] == ["causal-strict"]
    assert [h.name for h in found.hazards] == ["masked-nan-leak"], str(found)
