"""Two mistakes of different families at once: both are named. `python tests/checking/pairs.py` tries all pairs."""

import itertools

import pytest
from pairs import STYLES, Pair, chosen, named, pairs, tellable

WANTED = 0.9


def check_share(some: list[tuple[str, Pair]]) -> None:
    """Fail when less than nine of ten of these are named exactly."""
    missed = [(style, pair) for style, pair in some if sorted(named(style, pair)) != sorted(pair)]
    assert 1 - len(missed) / len(some) >= WANTED, missed


def test_some_pairs_are_named_exactly() -> None:
    check_share(list(itertools.islice(chosen(), 6)))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_twentieth_of_all_pairs_is_named_exactly() -> None:
    some = list(chosen(0.05))
    assert {style for style, _ in some} == STYLES.keys()
    check_share(some)


def test_there_are_hundreds_of_pairs() -> None:
    assert sum(len(pairs(style)) for style in STYLES) > 800


def test_a_mistake_that_hides_another_is_not_counted() -> None:
    assert not tellable("function", ("softmax-singleton", "scale-missing"))
    assert tellable("function", ("softmax-twice", "scale-missing"))
    assert not tellable("function", ("softmax-missing", "mask-zeroed"))
