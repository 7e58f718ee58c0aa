"""All pairs of mistakes from different families that the wrong implementations of this folder can make at once.

`python tests/checking/pairs.py` checks every one of them, says how many are named exactly, and lists the others.
"""

import argparse
import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import wrong_attention
import wrong_blocks
import wrong_cache
import wrong_module
import zoo
from torch import Tensor, nn

from heedful.checking import check
from heedful.checking.catalogue import find

Pair = tuple[str, str]


class Style(NamedTuple):
    """One style of implementation: how it is made, what it answers, and the two lists that its pairs come from."""

    make: Callable[..., Any]
    answers: Callable[[Any], list[Tensor]]
    first: list[str]
    second: list[str]


def of_function(attention: Callable[..., Tensor], masked: bool = True) -> list[Tensor]:
    """With and without a mask, and for grouped heads unless they clash with the mistakes."""
    found = []
    for groups in (1, 2):
        q = torch.randn(3, 4, 6, 8)
        k, v = torch.randn(3, 4 // groups, 6, 8), torch.randn(3, 4 // groups, 6, 8)
        mask = (torch.rand(3, 1, 6, 6) < 0.6) | torch.eye(6, dtype=torch.bool)
        try:
            found.append(attention(q, k, v))
        except (RuntimeError, ValueError):
            break
        if masked and groups == 1:
            found.append(attention(q, k, v, mask))
    return found


def of_causal_function(attention: Callable[..., Tensor]) -> list[Tensor]:
    """The same without masks."""
    return of_function(attention, masked=False)


def built(kind: type[nn.Module]) -> nn.Module:
    """With four heads, and no parameter that is 0."""
    module = kind(32, 4)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module


def of_module(kind: type[nn.Module]) -> list[Tensor]:
    """Output and weights, with and without a mask, and in training."""
    module = built(kind)
    module.p = 0.5
    x, memory = torch.randn(3, 6, 32), torch.randn(3, 6, 32)
    mask = (torch.rand(3, 1, 6, 6) < 0.6) | torch.eye(6, dtype=torch.bool)
    results = [module.eval()(x, memory, memory), module(x, memory, memory, mask)]
    torch.manual_seed(4)
    results.append(module.train()(x, memory, memory))
    return [t for r in results for t in (r if isinstance(r, tuple) else (r,))]


def of_cache(kind: type[nn.Module]) -> list[Tensor]:
    """All tokens at once, and step by step."""
    module, x = built(kind), torch.randn(3, 6, 32)
    output, cache = module(x[:, :2])
    return [module(x)[0], output, module(x[:, 2:3], cache)[0]]


PROJECTED = [n for n in zoo.MODULE if not n.startswith(("weights-", "dropout-"))]
MASKLESS = [n for n in zoo.ATTENTION if find(n).family != "mask"]
UNGROUPED = [n for n in zoo.ATTENTION if n not in ("heads-groups-tiled", "heads-first-only")]
WEIGHING = [n for n in zoo.ATTENTION if find(n).family in ("scale", "softmax")]
STYLES = {
    "function": Style(wrong_attention.make, of_function, zoo.ATTENTION, zoo.ATTENTION),
    "causal function": Style(wrong_attention.make_causal, of_causal_function, zoo.CAUSAL, MASKLESS),
    "module": Style(wrong_module.make, of_module, zoo.MODULE, zoo.MODULE),
    "module with a wrong function": Style(wrong_blocks.make, of_module, PROJECTED, UNGROUPED),
    "block with a cache": Style(wrong_cache.make, of_cache, zoo.HANDED, WEIGHING),
}
# The catalogue says so: without a softmax, both of these are `softmax-missing` under its other name.
SAME = [{"softmax-missing", "mask-zeroed"}, {"softmax-missing", "mask-after-softmax"}]


def pairs(style: str) -> list[Pair]:
    """The pairs of this style."""
    _, _, first, second = STYLES[style]
    found = itertools.combinations(first, 2) if first == second else itertools.product(first, second)
    return [(a, b) for a, b in found if find(a).family != find(b).family]


def answers(style: str, *names: str) -> list[Tensor]:
    """What an implementation with these mistakes gives."""
    torch.manual_seed(3)
    return STYLES[style].answers(STYLES[style].make(*names))


def tellable(style: str, pair: Pair) -> bool:
    """Whether both mistakes show: the pair is another function than either of them alone, and gives numbers.

    Alone may mean with minus infinity for blocked scores, or with -1e9: people write either.
    """
    both = answers(style, *pair)
    if set(pair) in SAME or not any(t.isfinite().any() for t in both):
        return False
    return not any(
        alike(both, answers(style, name, *fill)) for name in pair for fill in ((), ("blocked-finite",))
    )


def alike(some: list[Tensor], others: list[Tensor]) -> bool:
    """Whether these are the same answers."""
    return all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)
        for a, b in zip(some, others, strict=False)
    )


def named(style: str, pair: Pair) -> list[str]:
    """The mistakes that are named for an implementation with this pair."""
    return [m.name for m in check(STYLES[style].make(*pair)).mistakes]


def chosen(share: float = 1.0) -> Iterator[tuple[str, Pair]]:
    """Style and pair, those that can be told; or a share of them, always the same."""
    every = [(style, pair) for style in STYLES for pair in pairs(style)]
    picked = random.Random(1).sample(every, round(share * len(every)))
    return ((style, pair) for style, pair in picked if tellable(style, pair))


def report(part: int, parts: int) -> None:
    """Check every pair of this part, and print the figures."""
    counts: dict[str, list[int]] = {style: [0, 0] for style in STYLES}
    slowest = 0.0
    for style, pair in itertools.islice(chosen(), part - 1, None, parts):
        begin = time.perf_counter()
        found = named(style, pair)
        slowest = max(slowest, time.perf_counter() - begin)
        counts[style][0] += sorted(found) == sorted(pair)
        counts[style][1] += 1
        if sorted(found) != sorted(pair):
            print(f"{style}: {' + '.join(pair)} is named {' + '.join(found) or 'nothing'}", flush=True)
    for style, (exact, total) in counts.items():
        print(f"{style:<30}{exact:>5} of {total:>4} named exactly, {exact / max(total, 1):.1%}")
    exact, total = (sum(column) for column in zip(*counts.values(), strict=True))
    print(f"{'all':<30}{exact:>5} of {total:>4} named exactly, {exact / total:.1%}; slowest {slowest:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="1/1", help="2/4 checks the second quarter")
    report(*map(int, parser.parse_args().part.split("/")))
