"""The calls of one module in order. A cache that grows from call to call is kept once, not once per call."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._call import Call
from .._unchanged import changes, check_unchanged
from .._weights import Weights
from .answers import Answers

SMALL = 2**24


class Begun(NamedTuple):
    """A call whose keys and values begin those of the last call of the series; its own were let go."""

    bare: Weights
    num_keys: int

    @classmethod
    def of(cls, weights: Weights) -> "Begun":
        call = weights._call
        bare = replace(call, key=call.key.new_empty(0), value=call.value.new_empty(0))
        return cls(_with_call(weights, bare, changes(call, weights._versions)), call.key.shape[2])

    def weights(self, last: Weights) -> Weights:
        key, value = (x[:, :, : self.num_keys] for x in (last._call.key, last._call.value))
        query_changed, _, _, *others = changes(self.bare._call, self.bare._versions)
        _, *kept_changed = changes(last._call, last._versions)[:3]
        call = replace(self.bare._call, key=key, value=value)
        return _with_call(self.bare, call, (query_changed, *kept_changed, *others))


def _with_call(weights: Weights, call: Call, changed: tuple[bool, ...]) -> Weights:
    shapes = weights._batch_shape, weights._head_shape
    return Weights(call, weights._backend, *shapes, weights._remembered, weights._grad, changed)


class Series:
    """Weights of several calls. Without `Begun`, a generation of n tokens would keep n copies of the cache."""

    def __init__(self, calls: tuple[Weights, ...] = (), first_keys: tuple[int, ...] = ()):
        self._calls: list[Weights | Begun] = list(calls)
        # The token that the first key of each call belongs to: above 0 where a sliding cache let go of the first ones.
        self.first_keys = list(first_keys)
        self._tokens = 0
        # How many of the last call's first keys those that begin it may look at.
        self._needed = 0

    def append(self, weights: Weights) -> None:
        """Add the next call."""
        L, S = weights.shape[-2:]
        last = self._calls[-1] if self._calls else None
        begun = False
        if isinstance(last, Weights) and not isinstance(last, Answers):
            needed = max(self._needed, _reach(last._call))
            begun = _begins(last, weights._call, needed)
            if begun:
                self._calls[-1] = Begun.of(last)
                self._needed = needed
            else:
                self._settle()
        self._tokens = S if last is None or L == S else self._tokens + L
        self.first_keys.append(self.first_keys[-1] if begun else max(0, self._tokens - S))
        self._calls.append(weights)

    def __len__(self) -> int:
        return len(self._calls)

    def __getitem__(self, index: int) -> Weights:
        entry, last = self._calls[index], self._calls[-1]
        if isinstance(entry, Weights):
            return entry
        assert isinstance(last, Weights)
        return entry.weights(last)

    def __iter__(self) -> Iterator[Weights]:
        return (self[index] for index in range(len(self)))

    def _settle(self) -> None:
        """The last call is not the longest any more: give those that begin it their keys."""
        self._calls = list(self)
        self._needed = 0


def _begins(earlier: Weights, later: Call, needed: int) -> bool:
    """Whether the first keys and values of a later call can stand for those of an earlier one."""
    before = earlier._call
    if before.key.requires_grad or later.key.requires_grad or before.key.shape[2] > later.key.shape[2]:
        return False
    for old, new in ((before.key, later.key), (before.value, later.value)):
        alike = old.shape[:2] == new.shape[:2] and (old.dtype, old.device) == (new.dtype, new.device)
        if not alike or not torch.equal(old[:, :, :needed], new[:, :, :needed]):
            return False
    try:
        check_unchanged(before, earlier._versions, value_too=True)
    except RuntimeError:
        return False
    return True


def _reach(call: Call) -> int:
    """One past the last key that any query of the call may see, or more where finding out would cost too much."""
    S = call.key.shape[2]
    if call.mask is None:
        return S
    reach = max((keys.stop for keys in call.mask.ranges(call.rows)), default=0)
    if call.query.shape[0] * call.query.shape[2] * reach > SMALL:
        return reach
    block: Any = call.mask.seen(call.rows, range(reach))
    if not isinstance(block, Tensor):
        return reach if block else 0
    seen = block.flatten(0, -2).any(0).expand(reach).nonzero()
    return int(seen[-1]) + 1 if len(seen) else 0
