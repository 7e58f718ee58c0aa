"""Masks for hypothesis: any combination of patterns, each with the matrix it stands for, worked out from positions."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from heedful import Mask, masks
from heedful._rows import Rows


@dataclass
class Sizes:
    B: int
    H: int
    L: int
    S: int
    start: int | tuple[int, ...]

    @property
    def query_start(self) -> int | Tensor:
        return self.start if isinstance(self.start, int) else torch.tensor(self.start)

    def dense(self, mask: Mask) -> Tensor:
        return mask.to_dense(self.L, self.S, self.query_start).expand(self.B, self.H, self.L, self.S)

    def rows(self) -> Rows:
        whole = slice(0, self.B), slice(0, self.H), slice(0, self.L)
        return Rows(*whole, self.query_start, self.B, self.H, self.L, self.S, torch.device("cpu"))

    @property
    def p(self) -> Tensor:
        """Positions of the queries, (B, 1, L, 1)."""
        start = torch.as_tensor(self.start).expand(self.B)
        return start.view(-1, 1, 1, 1) + torch.arange(self.L)[:, None]


@dataclass
class Rule:
    """A mask, and the matrix it stands for, worked out from positions alone."""

    mask: Mask
    matrix: Tensor
    text: str

    def __repr__(self) -> str:
        return self.text


@st.composite
def sizes(draw: st.DrawFn) -> Sizes:
    B, H, L, S = (draw(st.integers(1, top)) for top in (3, 3, 6, 9))
    start = st.integers(-4, S + 2)
    return Sizes(B, H, L, S, draw(start | st.tuples(*[start] * B)))


def tensors(draw: st.DrawFn, shape: tuple[int, ...], low: int, high: int) -> Tensor:
    count = torch.Size(shape).numel()
    return torch.tensor(draw(st.lists(st.integers(low, high), min_size=count, max_size=count))).view(shape)


@st.composite
def patterns(draw: st.DrawFn, n: Sizes) -> Rule:
    """One mask that is no combination."""
    b, _, _, j = (
        torch.arange(size).view([-1 if d == k else 1 for d in range(4)])
        for k, size in enumerate((n.B, n.H, n.L, n.S))
    )
    kind = draw(
        st.sampled_from(
            ["causal", "window", "prefix", "prefixes", "padding", "documents", "two documents", "dense"]
        )
    )
    whole = (n.B, n.H, n.L, n.S)
    if kind == "causal":
        return Rule(masks.causal(), (j <= n.p).expand(whole), "causal()")
    if kind == "window":
        left, right = draw(st.none() | st.integers(1, 6)), draw(st.none() | st.integers(0, 5))
        keep = (j > n.p - (99 if left is None else left)) & (j <= n.p + (99 if right is None else right))
        return Rule(masks.window(left, right), keep.expand(whole), f"window({left}, {right})")
    if kind == "prefix":
        length = draw(st.integers(0, n.S))
        return Rule(masks.prefix(length), (j < length).expand(whole), f"prefix({length})")
    if kind == "prefixes":
        lengths = tensors(draw, (n.B,), 0, n.S)
        return Rule(masks.lengths(lengths), (j < lengths[b]).expand(whole), f"lengths({lengths.tolist()})")
    if kind == "padding":
        keep = tensors(draw, (n.B, n.S), 0, 1)
        return Rule(masks.padding(keep), keep.bool()[b, j].expand(whole), f"padding({keep.tolist()})")
    if kind == "documents":
        ids = tensors(draw, (n.B, n.S) if draw(st.booleans()) else (n.S,), -1, 2)
        of_keys = ids.expand(n.B, n.S)
        inside = (n.p >= 0) & (n.p < n.S)
        of_rows = torch.where(inside, of_keys[b, n.p.clamp(0, n.S - 1)], -1)
        return Rule(
            masks.documents(ids),
            ((of_rows == of_keys[b, j]) & (of_rows >= 0)).expand(whole),
            f"documents({ids.tolist()})",
        )
    if kind == "two documents":
        ids, key_ids = tensors(draw, (n.B, n.L), -1, 2), tensors(draw, (n.S,), -1, 2)
        keep = (ids[:, None, :, None] == key_ids) & (ids[:, None, :, None] >= 0)
        return Rule(
            masks.documents(ids, key_ids),
            keep.expand(whole),
            f"documents({ids.tolist()}, {key_ids.tolist()})",
        )
    shape = tuple(size if draw(st.booleans()) else 1 for size in whole)
    keep = tensors(draw, shape, 0, 1).bool()
    return Rule(masks.dense(keep), keep.expand(whole), f"dense({keep.int().tolist()})")


@st.composite
def rules(draw: st.DrawFn, n: Sizes, depth: int = 3) -> Rule:
    """A pattern, or a combination of rules."""
    kind = draw(st.sampled_from(["pattern", "and", "or", "not"])) if depth else "pattern"
    if kind == "pattern":
        return draw(patterns(n))
    left = draw(rules(n, depth - 1))
    if kind == "not":
        return Rule(~left.mask, ~left.matrix, f"~({left})")
    right = draw(rules(n, depth - 1))
    if kind == "and":
        return Rule(left.mask & right.mask, left.matrix & right.matrix, f"({left} & {right})")
    return Rule(left.mask | right.mask, left.matrix | right.matrix, f"({left} | {right})")
