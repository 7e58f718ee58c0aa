"""Any index: weights[index] is what the matrix gives, or an IndexError where the matrix gives one."""

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from heedful import Weights, masks, scaled_dot_product_attention

SHAPES = {
    "4-D": ((2, 4, 5, 3), (2, 2, 7, 3)),
    "3-D": ((3, 4, 3), (3, 6, 3)),
    "5-D": ((2, 3, 2, 4, 3), (2, 3, 1, 5, 3)),
}


def make(name: str) -> Weights:
    query, key = SHAPES[name]
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(query, generator=generator), torch.randn(key, generator=generator)
    return scaled_dot_product_attention(query, key, key, masks.causal()).weights


WEIGHTS = {name: make(name) for name in SHAPES}
MATRICES = {name: weights.full() for name, weights in WEIGHTS.items()}


def one_item(size: int) -> st.SearchStrategy[Any]:
    """An index into one dimension of this size, sometimes out of range."""
    numbers = st.integers(-size - 1, size)
    inside = st.integers(-size, size - 1)
    ends = st.none() | st.integers(-size - 2, size + 2)
    return st.one_of(
        numbers,
        inside,
        inside.map(torch.tensor),
        st.builds(slice, ends, ends, st.none() | st.integers(1, 3)),
        st.just(slice(None)),
        st.lists(inside, min_size=1, max_size=4),
        st.lists(inside, max_size=4).map(lambda found: torch.tensor(found, dtype=torch.int64)),
        st.lists(st.booleans(), min_size=size, max_size=size).map(torch.tensor),
        st.lists(st.lists(inside, min_size=2, max_size=2), min_size=1, max_size=2).map(torch.tensor),
    )


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """An index of some dimensions, from the left or with an ellipsis, new dimensions here and there."""
    used = draw(st.integers(0, len(shape)))
    place = draw(st.none() | st.integers(0, used))
    dims = list(range(used))
    if place is not None:  # what stands behind the ellipsis counts from the right
        dims = [*range(place), *range(len(shape) - (used - place), len(shape))]
    items: list[Any] = [draw(one_item(shape[dim])) for dim in dims]
    if place is not None:
        items.insert(place, ...)
    for _ in range(draw(st.integers(0, 2))):
        items.insert(draw(st.integers(0, len(items))), None)
    return items[0] if len(items) == 1 and draw(st.booleans()) else tuple(items)


def outcome(x: Weights | Tensor, index: Any) -> Tensor | type[Exception]:
    try:
        found = x[index]
    except IndexError:
        return IndexError
    return found.full() if isinstance(found, Weights) else found


@given(st.data(), st.sampled_from(list(SHAPES)))
def test_weights_are_indexed_like_the_matrix(data: st.DataObject, name: str) -> None:
    index = data.draw(indices(tuple(MATRICES[name].shape)))
    expected, found = outcome(MATRICES[name], index), outcome(WEIGHTS[name], index)
    if isinstance(expected, Tensor) and isinstance(found, Tensor):
        torch.testing.assert_close(found, expected)
    else:
        assert found is expected


@given(st.data())
def test_a_boolean_index_over_several_dimensions(data: st.DataObject) -> None:
    matrix, weights = MATRICES["4-D"], WEIGHTS["4-D"]
    first = data.draw(st.integers(0, 3))
    last = data.draw(st.integers(first + 1, 4))
    bits = data.draw(st.lists(st.booleans(), min_size=12, max_size=12))
    size = matrix.shape[first:last].numel()
    where = torch.tensor(bits).repeat(size // 12 + 1)[:size].view(matrix.shape[first:last])
    index = (*[slice(None)] * first, where)
    torch.testing.assert_close(outcome(weights, index), matrix[index])


@given(st.data())
@example(None)
def test_several_index_tensors_are_broadcast_together(data: st.DataObject | None) -> None:
    shape = MATRICES["4-D"].shape
    sizes = [2, 3] if data is None else data.draw(st.sampled_from([[2], [3, 1], [2, 2], [1, 4]]))
    generator = torch.Generator().manual_seed(0 if data is None else data.draw(st.integers(0, 99)))
    index = tuple(torch.randint(-n, n, sizes, generator=generator) for n in shape)
    torch.testing.assert_close(WEIGHTS["4-D"][index], MATRICES["4-D"][index])


@given(st.integers(-3, 3), st.integers(-3, 3))
def test_questions_of_a_part_are_parts_of_the_answers(item: int, head: int) -> None:
    """weights[item, head] is a smaller Weights, whose answers are that part of the whole's."""
    weights = WEIGHTS["4-D"]
    index = (item % 2 - 2 * (item < 0), head)
    part = weights[index]
    assert isinstance(part, Weights)
    for ask in (Weights.entropy, Weights.received, Weights.logsumexp, Weights.mean_distance, Weights.full):
        torch.testing.assert_close(ask(part), ask(weights)[index])
    torch.testing.assert_close(part.topk(2).values, weights.topk(2).values[index])
    torch.testing.assert_close(part @ torch.ones(7), (weights @ torch.ones(7))[index])


@pytest.mark.parametrize("name", SHAPES)
def test_leading_indices_give_weights_and_others_a_tensor(name: str) -> None:
    weights, matrix = WEIGHTS[name], MATRICES[name]
    lead = matrix.dim() - 2
    for index in (
        ...,
        slice(None),
        0,
        -1,
        slice(0, 1),
        [0],
        [1, 0, 1],
        torch.tensor([True] + [False] * (len(matrix) - 1)),
    ):
        assert isinstance(weights[index], Weights), index
        torch.testing.assert_close(weights[index].full(), matrix[index])
    assert isinstance(weights[(0,) * lead], Weights)
    for index in (
        (..., 0),
        (..., 0, slice(None)),
        (*(0,) * lead, 0),
        (..., slice(0, 2), slice(None)),
        (None, ...),
    ):
        assert isinstance(weights[index], Tensor), index
        torch.testing.assert_close(weights[index], matrix[index])


def test_a_part_of_a_part_is_a_part() -> None:
    weights, matrix = WEIGHTS["5-D"], MATRICES["5-D"]
    torch.testing.assert_close(weights[1][2].full(), matrix[1, 2])
    torch.testing.assert_close(weights[:, 1:][1, [1, 0]][:, 1].full(), matrix[:, 1:][1, [1, 0]][:, 1])
    torch.testing.assert_close(weights[..., 1, :, :][0][2, -1], matrix[..., 1, :, :][0][2, -1])


def test_the_gradient_of_an_element_reaches_query_and_key() -> None:
    query, key, value = torch.randn(2, 4, 5, 3), torch.randn(2, 2, 7, 3), torch.randn(2, 2, 7, 3)
    index = ([0, 1, 1, 0], [3, 0, 2, 3], [4, 1, 1, 4], [2, 0, 6, 2])
    grads = []
    for lazy in (True, False):
        leaves = [query.clone().requires_grad_(), key.clone().requires_grad_()]
        weights = scaled_dot_product_attention(*leaves, value, masks.causal()).weights
        grads.append(torch.autograd.grad((weights if lazy else weights.full())[index].sin().sum(), leaves))
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected)
