"""Every mistake of the catalogue, made again in another style, is named as itself, and nothing else is."""

import pytest
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
