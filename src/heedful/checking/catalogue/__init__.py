"""Every mistake that `heedful check` knows, one file per family."""

import functools

from heedful.checking.catalogue.entry import Family, Mistake, Variant

__all__ = ["Family", "Mistake", "Variant", "families", "find", "mistakes"]


@functools.cache
def families() -> tuple[Family, ...]:
    """All families, in the order of the docs."""
    from heedful.checking.catalogue import (
        cache,
        causality,
        heads,
        masks,
        module,
        numerics,
        operands,
        positions,
        rotary,
        scale,
        softmax,
    )

    files = (softmax, scale, masks, causality, heads, operands, module, positions, rotary, cache, numerics)
    return tuple(file.family for file in files)


def mistakes(subject: str | None = None) -> tuple[Mistake, ...]:
    """All entries, or those that this kind of target can make."""
    return tuple(m for f in families() for m in f.mistakes if subject in (None, m.subject))


def find(name: str) -> Mistake:
    """The entry with this name.

    Raises:
        KeyError: There is none; the message names the closest ones.
    """
    import difflib

    known = {m.name: m for m in mistakes()}
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6) or [m for m in known if name in m]
    hint = f"Did you mean {' or '.join(close)}?" if close else "`heedful check --list` shows all names."
    raise KeyError(f"no mistake is called {name!r}. {hint}")
