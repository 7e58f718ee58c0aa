"""Masks as rules: they obey the laws of logic, and their blocks, ranges and pieces are those of the matrix."""

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from heedful.masks import _algebra
from mask_rules import rules, sizes, tensors


@st.composite
def problems(draw: st.DrawFn, number: int = 1) -> tuple:
    n = draw(sizes())
    return n, *(draw(rules(n)) for _ in range(number))


def choice(draw: Callable, size: int) -> slice | Tensor:
    """Some of `size` things: a stretch of them, or any in any order."""
    if draw(st.booleans()):
        start = draw(st.integers(0, size - 1))
        return slice(start, draw(st.integers(start + 1, size)))
    return torch.tensor(draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=size)))


def take(x: Tensor, *choices: slice | Tensor) -> Tensor:
    for dim, chosen in enumerate(choices):
        x = x[(slice(None),) * dim + (chosen,)]
    return x


@given(problems())
def test_a_mask_is_the_matrix_of_its_rule(problem: tuple) -> None:
    n, rule = problem
    assert torch.equal(n.dense(rule.mask), rule.matrix)
    assert not rule.mask.misfits(n.B, n.H, n.L, n.S)


LAWS = {
    "De Morgan, and": lambda a, b, c: (~(a & b), ~a | ~b),
    "De Morgan, or": lambda a, b, c: (~(a | b), ~a & ~b),
    "not not": lambda a, b, c: (~~a, a),
    "and is commutative": lambda a, b, c: (a & b, b & a),
    "or is commutative": lambda a, b, c: (a | b, b | a),
    "and is associative": lambda a, b, c: ((a & b) & c, a & (b & c)),
    "or is associative": lambda a, b, c: ((a | b) | c, a | (b | c)),
    "and distributes over or": lambda a, b, c: (a & (b | c), (a & b) | (a & c)),
    "or distributes over and": lambda a, b, c: (a | (b & c), (a | b) & (a | c)),
    "absorption": lambda a, b, c: (a & (a | b), a),
    "absorption, the other way": lambda a, b, c: (a | (a & b), a),
    "idempotence": lambda a, b, c: (a & a, a | a),
    "excluded middle": lambda a, b, c: (a | ~a, ~(b & ~b)),
}


@pytest.mark.parametrize("law", LAWS)
@given(problems(3))
def test_laws(law: str, problem: tuple) -> None:
    n, *operands = problem
    left, right = LAWS[law](*(rule.mask for rule in operands))
    assert torch.equal(n.dense(left), n.dense(right))


@given(problems(), st.data())
def test_a_block_of_a_part_is_that_part_of_the_matrix(problem: tuple, data: st.DataObject) -> None:
    n, rule = problem
    batch, heads, index = (choice(data.draw, size) for size in (n.B, n.H, n.L))
    start = data.draw(st.integers(0, n.S - 1))
    keys = range(start, data.draw(st.integers(start + 1, n.S)))
    block = rule.mask.block(n.rows().part(batch, heads, index), keys)
    expected = take(rule.matrix, batch, heads, index)[..., keys.start : keys.stop]
    assert isinstance(block, bool | Tensor)
    assert torch.equal(torch.as_tensor(block).expand(expected.shape), expected)


@given(problems(), st.data())
def test_ranges_and_pieces_leave_out_nothing_that_is_visible(problem: tuple, data: st.DataObject) -> None:
    n, rule = problem
    batch, heads, index = (choice(data.draw, size) for size in (n.B, n.H, n.L))
    rows = n.rows().part(batch, heads, index)
    expected = take(rule.matrix, batch, heads, index)
    with mock.patch.object(_algebra, "PIECE", data.draw(st.integers(1, 4))):
        ranges, pieces = rule.mask.ranges(rows), rule.mask.pieces(rows)
    for found in (ranges, [keys for keys, _ in pieces]):
        ends = [end for keys in found for end in (keys.start, keys.stop)]
        assert ends == sorted(ends), "in order, and disjoint"
        assert all(0 <= keys.start < keys.stop <= n.S and keys.step == 1 for keys in found)
    reached = torch.zeros(n.S, dtype=torch.bool)
    for keys in ranges:
        reached[keys.start : keys.stop] = True
    assert not (expected & ~reached).any(), "a visible key is out of reach"
    rebuilt = torch.zeros_like(expected)
    for keys, block in pieces:
        assert block is not False
        rebuilt[..., keys.start : keys.stop] = torch.as_tensor(block)
    assert torch.equal(rebuilt, expected)


@given(problems(), st.data())
def test_a_tensor_combines_with_a_mask_from_either_side(problem: tuple, data: st.DataObject) -> None:
    n, rule = problem
    keep = tensors(data.draw, (n.L, n.S), 0, 1).bool()
    for combined, expected in (
        (rule.mask & keep, rule.matrix & keep),
        (keep & rule.mask, rule.matrix & keep),
        (rule.mask | keep, rule.matrix | keep),
        (keep | rule.mask, rule.matrix | keep),
    ):
        assert torch.equal(n.dense(combined), expected)
