"""The list of calls that every backend must get right."""

import torch

from cases import Case, ids, padded, random_keep
from heedful import masks

SHAPES = [
    Case("equal lengths", L=6, S=6),
    Case("more keys than queries"),
    Case("more queries than keys", L=9, S=4),
    Case("one query", L=1),
    Case("one key", S=1),
    Case("one query, one key", L=1, S=1),
    Case("one batch item, one head", B=1, H=1, G=1),
    Case("grouped heads", H=6, G=3),
    Case("grouped heads, one group", H=3, G=1),
    Case("value narrower than key", Ev=3),
    Case("value wider than key", Ev=11),
    Case("head size 1", E=1, Ev=1),
    Case("odd sizes", B=3, H=5, G=5, L=11, S=13, E=7, Ev=9),
    Case("large scores", size=30.0),
    Case("scale", scale=0.3),
    Case("scale 0", scale=0.0),
    Case("negative scale", scale=-0.7),
]
EMPTY = [
    Case("no batch items", B=0),
    Case("no queries", L=0),
    Case("no keys", S=0),
    Case("no keys, sinks", S=0, sinks=True),
    Case("no keys, causal", S=0, mask=lambda c: masks.causal(), keep=lambda j, p, **_: j <= p),
    Case("no queries, no keys", L=0, S=0),
]
LAYOUTS = [
    Case(f"{layout} tensors", layout=layout, H=6, G=3, Ev=5)
    for layout in ("transposed", "sliced", "columns", "offset", "expanded")
]


def causal(j, p, **_):
    return j <= p


def near(left, right):
    return lambda j, p, **_: (j > p - left) & (j <= p + right)


def real(case):
    return lambda b, j, **_: padded(case)[b, j]


def same_document(case):
    """Each query takes the id at its position; outside of the ids it has none."""

    def rule(b, j, p, **_):
        of_keys = ids(case, case.S)
        of_query = of_keys[b, p.clamp(0, case.S - 1)].masked_fill((p < 0) | (p >= case.S), -1)
        return (of_query == of_keys[b, j]) & (of_query >= 0)

    return rule


def across_documents(case):
    def rule(b, i, j, **_):
        of_queries, of_keys = ids(case, case.L)[b, i], ids(case, case.S)[b, j]
        return (of_queries == of_keys) & (of_queries >= 0)

    return rule


def given(case):
    return lambda b, h, i, j, **_: random_keep(case)[b, h, i, j]


def with_rule(rule, **sizes):
    """A case whose rule needs to know its sizes."""
    return Case(**sizes, keep=rule(Case(**sizes)))


MASKS = [
    Case("causal", mask=lambda c: masks.causal(), keep=causal),
    Case("causal, queries before the keys", L=9, S=4, mask=lambda c: masks.causal(), keep=causal),
    Case("causal from 0", query_start=0, mask=lambda c: masks.causal(), keep=causal),
    Case("causal from -2", query_start=-2, mask=lambda c: masks.causal(), keep=causal),
    Case("causal past the keys", query_start=9, mask=lambda c: masks.causal(), keep=causal),
    Case("causal, a start per item", query_start=(3, -1), mask=lambda c: masks.causal(), keep=causal),
    Case("window", L=6, S=9, mask=lambda c: masks.window(3), keep=near(3, 0)),
    Case("window both ways", L=6, S=9, mask=lambda c: masks.window(2, 2), keep=near(2, 2)),
    Case("window of one", L=6, S=6, mask=lambda c: masks.window(1), keep=near(1, 0)),
    Case("window open to the left", L=6, S=9, mask=lambda c: masks.window(None, 1), keep=near(99, 1)),
    Case("window open to the right", L=6, S=9, mask=lambda c: masks.window(2, None), keep=near(2, 99)),
    Case("window, a start per item", query_start=(5, 0), mask=lambda c: masks.window(2, 1), keep=near(2, 1)),
    Case("prefix", mask=lambda c: masks.prefix(3), keep=lambda j, **_: j < 3),
    Case("prefix of 0", mask=lambda c: masks.prefix(0), keep=lambda j, **_: j < 0),
    Case(
        "prefix per item",
        mask=lambda c: masks.prefix(torch.tensor([2, 6])),
        keep=lambda b, j, **_: j < torch.tensor([2, 6])[b],
    ),
    Case(
        "prefix or causal",
        L=7,
        mask=lambda c: masks.prefix(torch.tensor([2, 4])) | masks.causal(),
        keep=lambda b, j, p, **_: (j <= p) | (j < torch.tensor([2, 4])[b]),
    ),
    Case(
        "lengths, one of them 0",
        mask=lambda c: masks.lengths(torch.tensor([4, 0])),
        keep=lambda b, j, **_: j < torch.tensor([4, 0])[b],
    ),
    with_rule(real, name="padding", B=3, mask=lambda c: masks.padding(padded(c))),
    with_rule(
        lambda c: lambda b, j, p, **_: (j <= p) & padded(c)[b, j],
        name="padding and causal",
        B=3,
        mask=lambda c: masks.padding(padded(c)) & masks.causal(),
    ),
    with_rule(
        lambda c: lambda b, j, p, **_: padded(c)[b, j] & (j > p - 2) & (j <= p + 1),
        name="padding and window, a start per item",
        query_start=(0, 3),
        mask=lambda c: masks.window(2, 1) & masks.padding(padded(c)),
    ),
    with_rule(same_document, name="documents", mask=lambda c: masks.documents(ids(c, c.S))),
    with_rule(
        same_document,
        name="documents, a start per item",
        query_start=(1, -1),
        mask=lambda c: masks.documents(ids(c, c.S)),
    ),
    with_rule(
        lambda c: lambda **at: same_document(c)(**at) & causal(**at),
        name="documents and causal",
        L=7,
        mask=lambda c: masks.documents(ids(c, c.S)) & masks.causal(),
    ),
    with_rule(
        across_documents,
        name="documents of queries and keys",
        mask=lambda c: masks.documents(ids(c, c.L), ids(c, c.S)),
    ),
    with_rule(given, name="dense", mask=lambda c: masks.dense(random_keep(c))),
    with_rule(given, name="a bool tensor", mask=random_keep),
    with_rule(given, name="an integer tensor", mask=lambda c: random_keep(c).int()),
    with_rule(
        lambda c: lambda h, i, j, **_: random_keep(c)[0, h, i, j],
        name="a bool tensor per head",
        mask=lambda c: random_keep(c)[:1],
    ),
    with_rule(
        lambda c: lambda b, i, j, **_: random_keep(c)[b, 0, i, j],
        name="a bool tensor per item",
        mask=lambda c: random_keep(c)[:, :1],
    ),
    with_rule(
        lambda c: lambda i, j, **_: random_keep(c)[0, 0, i, j],
        name="a 2-D bool tensor",
        mask=lambda c: random_keep(c)[0, 0],
    ),
    with_rule(
        lambda c: lambda b, j, **_: random_keep(c)[b, 0, 0, j],
        name="a bool tensor of keys",
        mask=lambda c: random_keep(c)[:, :1, :1],
    ),
    with_rule(
        lambda c: lambda b, h, i, **_: random_keep(c)[b, h, i, 0],
        name="a bool tensor of queries",
        mask=lambda c: random_keep(c)[..., :1],
    ),
    with_rule(
        lambda c: lambda b, h, i, j, **_: ~random_keep(c)[b, h, i, j],
        name="not dense",
        mask=lambda c: ~masks.dense(random_keep(c)),
    ),
    Case("not causal", mask=lambda c: ~masks.causal(), keep=lambda j, p, **_: j > p),
    with_rule(
        lambda c: lambda b, h, i, j, p, **_: ((j <= p) & ~random_keep(c)[b, h, i, j]) | (j < 2),
        name="causal and not dense, or prefix",
        H=6,
        G=2,
        mask=lambda c: (masks.causal() & ~masks.dense(random_keep(c))) | masks.prefix(2),
    ),
    Case("everybody", mask=lambda c: masks.causal() | ~masks.causal()),
    Case("nobody", mask=lambda c: masks.causal() & ~masks.causal(), keep=lambda j, **_: j < 0),
]
BIASES = [
    Case(f"bias {name}", bias=shape, H=6, G=3)
    for name, shape in {
        "full": (2, 6, 5, 7),
        "per head": (1, 6, 5, 7),
        "per item": (2, 1, 5, 7),
        "2-D": (5, 7),
        "of keys": (2, 1, 1, 7),
        "of queries": (1, 6, 5, 1),
        "of heads": (1, 6, 1, 1),
        "one number": (1, 1),
    }.items()
] + [
    Case("bias of -inf here and there", bias=(2, 4, 5, 7), forbid=0.4),
    Case("bias of -inf everywhere", bias=(5, 7), forbid=1.1),
    Case("bias and causal", bias=(1, 4, 5, 7), mask=lambda c: masks.causal(), keep=causal),
    with_rule(
        given,
        name="bias of -inf and dense",
        bias=(2, 1, 5, 7),
        forbid=0.3,
        mask=lambda c: masks.dense(random_keep(c)),
    ),
]
SCORES = [
    Case("softcap", softcap=1.5, size=3.0),
    Case("softcap and causal", softcap=0.8, size=3.0, mask=lambda c: masks.causal(), keep=causal),
    Case("softcap and bias", softcap=2.0, bias=(2, 4, 5, 7), forbid=0.2),
    Case("sinks", sinks=True, H=6, G=2),
    Case("sinks and causal", sinks=True, L=9, S=4, mask=lambda c: masks.causal(), keep=causal),
    Case("sinks and nobody", sinks=True, mask=lambda c: masks.prefix(0), keep=lambda j, **_: j < 0),
    with_rule(
        lambda c: lambda b, j, p, **_: padded(c)[b, j] & (j <= p),
        name="everything at once",
        B=3,
        H=6,
        G=2,
        Ev=4,
        softcap=2.0,
        sinks=True,
        bias=(1, 6, 5, 7),
        forbid=0.1,
        scale=0.6,
        query_start=(2, 0, 4),
        mask=lambda c: masks.causal() & masks.padding(padded(c)),
        layout="transposed",
    ),
]
SMALL = SHAPES + EMPTY + LAYOUTS + MASKS + BIASES + SCORES

# Around the 128 and 512 rows of a panel, the 512 keys of a piece of a mask, and the budget of a panel.
LONGER = [
    Case(
        f"{L} queries, {S} keys, causal",
        B=1,
        H=2,
        G=1,
        L=L,
        S=S,
        E=4,
        Ev=3,
        mask=lambda c: masks.causal(),
        keep=causal,
    )
    for L, S in [(127, 127), (128, 129), (129, 128), (257, 300)]
] + [
    Case(
        "530 queries, 2112 keys, causal",
        B=1,
        H=2,
        G=2,
        L=530,
        S=2112,
        E=34,
        Ev=33,
        mask=lambda c: masks.causal(),
        keep=causal,
    ),
    Case("511 keys", B=2, H=2, G=2, L=3, S=511, E=4, Ev=5),
    Case(
        "513 keys, prefix",
        B=2,
        L=3,
        S=513,
        E=4,
        Ev=5,
        mask=lambda c: masks.prefix(512),
        keep=lambda j, **_: j < 512,
    ),
    Case(
        "1100 keys, causal",
        B=1,
        H=2,
        G=1,
        L=140,
        S=1100,
        E=4,
        Ev=5,
        mask=lambda c: masks.causal(),
        keep=causal,
    ),
    Case(
        "1100 keys, window",
        B=1,
        H=2,
        G=2,
        L=260,
        S=1100,
        E=4,
        Ev=5,
        mask=lambda c: masks.window(70),
        keep=near(70, 0),
    ),
    with_rule(
        lambda c: lambda b, j, p, **_: padded(c)[b, j] & ((j <= p) | (j < 600)),
        name="1300 keys, prefix or causal, and padding",
        H=2,
        G=1,
        L=131,
        S=1300,
        E=4,
        Ev=5,
        bias=(1, 2, 1, 1300),
        sinks=True,
        query_start=(500, 1169),
        mask=lambda c: (masks.causal() | masks.prefix(600)) & masks.padding(padded(c)),
    ),
    Case(
        "1100 keys, two stretches",
        B=1,
        H=2,
        G=2,
        L=130,
        S=1100,
        E=4,
        Ev=5,
        mask=lambda c: masks.window(9) | masks.prefix(5),
        keep=lambda j, p, **_: ((j > p - 9) & (j <= p)) | (j < 5),
    ),
    with_rule(
        same_document,
        name="1200 keys, documents",
        H=2,
        G=2,
        L=135,
        S=1200,
        E=4,
        Ev=5,
        mask=lambda c: masks.documents(ids(c, c.S)),
    ),
    with_rule(
        given,
        name="600 keys, dense",
        B=1,
        H=2,
        G=1,
        L=140,
        S=600,
        E=4,
        Ev=5,
        mask=random_keep,
        bias=(1, 2, 140, 600),
    ),
    Case("many heads to a panel", B=2, H=8, G=2, L=130, S=600, E=3, Ev=4, softcap=3.0),
]
