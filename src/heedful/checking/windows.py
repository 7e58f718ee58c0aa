"""Finds the window of a target in which queries only see the keys around their own position."""

import torch
from torch import Tensor

from heedful.checking.stages import Window


def seen_windows(reached: Tensor) -> list[Window]:
    """The windows that these pairs of query and key, bool (L, S), may be: with unequal lengths perhaps two.

    None when every key before a query is seen: then it is causality, or a mistake in it.
    """
    windows: list[Window] = []
    if not reached.any():
        return windows
    queries, keys = reached.shape
    for align in ("end", "start"):
        offset = keys - queries if align == "end" else 0
        ahead = torch.arange(keys) - torch.arange(queries)[:, None] - offset
        before, after = -int(ahead[reached].min()), int(ahead[reached].max())
        found = Window(before, after, align)
        bounded = 0 < before < -int(ahead.min()) and after in (0, before)
        if bounded and torch.equal(found.keep(queries, keys), reached):
            windows.append(found)
    return windows
