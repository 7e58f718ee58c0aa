"""Keys and values of the tokens seen so far, so that each token is projected once."""

from collections.abc import Generator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heedful import masks
from heedful._checks import at_least_one
from heedful.positions.naming import by_name


@by_name("Write KVCache(max_length=...) or KVCache(window=...).")
class KVCache:
    """Keys and values of one attention layer, for every token seen so far. Changed in place by `update`.

    * `KVCache()` grows with every token.
    * `KVCache(max_length=n)` is given its full size at the first update and refuses what goes beyond.
    * `KVCache(window=w)` slides: each token sees itself and the w - 1 before it, and what nobody can see any more is
      dropped when the next tokens come.

    Batches of unequal length: give all prompts padded on the right, then `truncate` to their true lengths. From then on
    each item's tokens follow its own last one.

    Args:
        max_length: Number of tokens to hold, or None.
        window: Number of tokens a token can see, itself included, or None.

    Raises:
        ValueError: A number is not positive, or both are given.

    Cost:
        Memory 2 * batch * heads * tokens * head_dim. A growing or sliding cache copies what it holds at each update,
        as does any cache while gradients are recorded; a cache with `max_length` otherwise writes the new tokens only,
        into the same memory, so `Weights` of an earlier step must be asked before the next.

    Example:
        >>> mha, cache = MultiHeadAttention(8, 2), KVCache()
        >>> x = torch.randn(3, 5, 8)
        >>> prompt, _ = mha(x[:, :4], mask=masks.causal(), cache=cache)
        >>> token, weights = mha(x[:, 4:], mask=masks.causal(), cache=cache)
        >>> cache.length, weights.shape
        (5, torch.Size([3, 2, 1, 5]))
    """

    def __init__(self, *, max_length: int | None = None, window: int | None = None) -> None:
        for name, size in (("max_length", max_length), ("window", window)):
            if size is not None:
                at_least_one(name, size)
        if max_length is not None and window is not None:
            raise ValueError(
                f"max_length and window cannot both be given, got {max_length} and {window}. "
                "A window bounds the memory by itself."
            )
        self.max_length = max_length
        self.window = window
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._length: int | Tensor = 0
        self._start = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    @property
    def length(self) -> int | Int[Tensor, " batch"]:
        """How many tokens were seen, dropped ones included: one number, or one per batch item where they differ."""
        return self._length

    @property
    def start(self) -> int:
        """Position of the first token that is still held; above 0 only where a window has slid."""
        return self._start

    @property
    def longest(self) -> int:
        """The largest of the lengths."""
        return self._length if isinstance(self._length, int) else int(self._length.max())

    @property
    def keys(self) -> Float[Tensor, "batch heads held head_dim"] | None:
        """The keys held, or None before the first update."""
        return None if self._keys is None else self._keys[:, :, : self.longest - self._start]

    @property
    def values(self) -> Float[Tensor, "batch heads held value_dim"] | None:
        """The values held, or None before the first update."""
        return None if self._values is None else self._values[:, :, : self.longest - self._start]

    def update(
        self,
        key: Float[Tensor, "batch heads new head_dim"],
        value: Float[Tensor, "batch heads new value_dim"],
    ) -> tuple[Float[Tensor, "batch heads held head_dim"], Float[Tensor, "batch heads held value_dim"]]:
        """Add new tokens, and get all that are held, the new ones last.

        Where lengths differ, each item's new tokens follow its own last one, and what lies beyond its length is not
        meant to be looked at: see `mask`.

        Args:
            key: Keys of the new tokens.
            value: Their values.

        Returns:
            All keys and all values held, the first of them at position `start`.

        Raises:
            ValueError: The new tokens do not fit in, in number, shape, dtype or device. The cache is as it was.

        Cost:
            A copy of what is held, or of the new tokens only where `max_length` is given and no gradients are recorded.
        """
        self._check(key, value)
        dropped = self._droppable()
        length = self._length + key.shape[2]
        keys, values = self._written(self._keys, key, dropped), self._written(self._values, value, dropped)
        self._keys, self._values, self._length = keys, values, length
        self._start += dropped
        held = self.longest - self._start
        return keys[:, :, :held], values[:, :, :held]

    def truncate(self, length: int | Int[Tensor, " batch"]) -> None:
        """Forget the tokens beyond a length: padding after a prompt, or a draft that was not accepted.

        Args:
            length: How many tokens to keep, for all items or for each; at most as many as there are.

        Raises:
            TypeError: `length` is neither an int nor an integer tensor.
            ValueError: It does not fit what is held. The cache is as it was.

        Cost:
            None; memory is freed by the next update.
        """
        if isinstance(length, Tensor):
            length = self._lengths(length)
        elif not isinstance(length, int) or isinstance(length, bool):
            raise TypeError(
                f"length must be an int or an integer tensor (batch,), got {type(length).__name__}."
            )
        new, old, lowest = torch.as_tensor(length), torch.as_tensor(self._length), self._lowest()
        if bool(((new < lowest) | (new > old)).any()):
            raise ValueError(
                f"length must be from {lowest}, the earliest that this cache can go back to, "
                f"to {old.tolist()}, what it has seen; got {new.tolist()}."
            )
        self._length = length
        if self.max_length is None:
            self._keys, self._values = self.keys, self.values

    def mask(self) -> masks.Mask | None:
        """What this cache allows to see, to be combined with the caller's mask; None where that is everything."""
        rule = None if self.window is None else masks.window(self.window, None)
        if isinstance(self._length, int):
            return rule
        written = masks.lengths(self._length - self._start)
        return written if rule is None else rule & written

    def __repr__(self) -> str:
        size = "" if self.max_length is None else f"max_length={self.max_length}"
        size = size if self.window is None else f"window={self.window}"
        length = self._length if isinstance(self._length, int) else self._length.tolist()
        return f"KVCache({size}), length {length}"

    def _lowest(self) -> int:
        """The shortest length whose next token would still find all that it may see."""
        return 0 if self._start == 0 or self.window is None else self._start + self.window - 1

    def _droppable(self) -> int:
        """How many of the first tokens the next ones cannot see."""
        if self.window is None:
            return 0
        shortest = self._length if isinstance(self._length, int) else int(self._length.min())
        return max(0, shortest - (self.window - 1) - self._start)

    def _written(self, held: Tensor | None, new: Tensor, dropped: int) -> Tensor:
        """The storage with the new tokens in it, and `dropped` tokens fewer at its front."""
        first = self._length - self._start - dropped
        if self.max_length is not None:
            if held is None:
                held = new.new_zeros(*new.shape[:2], self.max_length, new.shape[3])
            return _place(held, new, first)
        if held is None:
            return new
        held = held[:, :, dropped:]
        if isinstance(first, int):
            return torch.cat((held, new), dim=2)
        return _place(torch.cat((held, torch.zeros_like(new)), dim=2), new, first)

    def _lengths(self, length: Tensor) -> int | Tensor:
        """One number if all are equal, else integers on the CPU."""
        if self._keys is None:
            raise ValueError(
                "length cannot be given per item to an empty cache. Truncate it after the prompt."
            )
        batch = self._keys.shape[0]
        if length.dtype.is_floating_point or length.dtype == torch.bool or length.shape != (batch,):
            raise ValueError(
                f"length must be an int or an integer tensor (batch,) with batch = {batch}, "
                f"got {length.dtype} {tuple(length.shape)}.".replace("torch.", "")
            )
        length = length.detach().cpu().long()
        return int(length[0]) if len(length) and bool((length == length[0]).all()) else length

    def _check(self, key: Tensor, value: Tensor) -> None:
        if key.ndim != 4 or value.ndim != 4 or key.shape[:3] != value.shape[:3]:
            raise ValueError(
                "key and value must be (batch, heads, length, size) and differ in the last size only, "
                f"got {tuple(key.shape)} and {tuple(value.shape)}."
            )
        for name, new, held in (("key", key, self._keys), ("value", value, self._values)):
            if held is None:
                continue
            if (new.dtype, new.device) != (held.dtype, held.device):
                raise ValueError(
                    f"{name} must be {held.dtype} on {held.device} like the cache, got {new.dtype} on {new.device}. "
                    "Begin anew with cache.reset()."
                )
            if (*new.shape[:2], new.shape[3]) != (*held.shape[:2], held.shape[3]):
                batch, heads, _, size = held.shape
                raise ValueError(
                    f"{name} must be ({batch}, {heads}, any, {size}) like the cache, got {tuple(new.shape)}. "
                    "Each layer needs a cache of its own; cache.reset() begins anew."
                )
        if self.max_length is not None and self.longest + key.shape[2] > self.max_length:
            raise ValueError(
                f"KVCache(max_length={self.max_length}) holds {self.longest} tokens and cannot take {key.shape[2]} "
                "more. Make it longer, or begin anew with cache.reset()."
            )


@contextmanager
def unchanged_on_error(cache: KVCache | None) -> Generator[None]:
    """Put the cache back to what it holds now if something within fails."""
    before = None if cache is None else dict(vars(cache))
    try:
        yield
    except BaseException:
        if cache is not None and before is not None:
            vars(cache).update(before)
        raise


def _place(held: Tensor, new: Tensor, first: int | Tensor) -> Tensor:
    """`held` with `new` from slot `first` on: in place, but a copy while gradients are recorded."""
    count = new.shape[2]
    may_overwrite = not torch.is_grad_enabled() and not held.requires_grad
    if isinstance(first, int):
        if not may_overwrite:
            return held.slice_scatter(new, 2, first, first + count)
        held[:, :, first : first + count] = new
        return held
    slots = (
        (first[:, None] + torch.arange(count, device=first.device))
        .to(new.device)[:, None, :, None]
        .expand_as(new)
    )
    return held.scatter_(2, slots, new) if may_overwrite else held.scatter(2, slots, new)
