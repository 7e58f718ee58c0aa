"""Examines a function that builds an attention mask: causal, for padding, or both."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.checking import catalogue
from heedful.checking.calling import CallFailed, call_quietly, tensors_in
from heedful.checking.chain import Chain
from heedful.checking.claims import Claim, polarity, read, texts
from heedful.checking.fit import Fit, simplest
from heedful.checking.options import Options
from heedful.checking.problems import CannotCheck
from heedful.checking.record import Record
from heedful.checking.roles import assign, parameters
from heedful.checking.stages import Sizes, Window, causal
from heedful.checking.windows import seen_windows

BATCH, QUERIES, KEYS = 2, 5, 7
LENGTHS = torch.tensor([3, 4])
ROLES = ("lengths", "tokens", "pad", "queries", "keys", "length", "device", "dtype")
LOW = -1e3  # an additive mask has numbers below this where it blocks


@dataclass(frozen=True)
class BuilderReading:
    """Conventions of a mask.

    Attributes:
        keep: True, or 1, means "may attend".
        align: End to which a causal mask is aligned.
        causal: Whether the future is blocked.
        padding: Whether padding is.
        window: How far a query sees, if not all that came before.
    """

    keep: bool
    align: str
    causal: bool
    padding: bool
    window: Window | None = None


def real(lengths: Tensor, keys: int) -> Tensor:
    """Which tokens are real: (B, S)."""
    return torch.arange(keys) < lengths[:, None]


@dataclass(frozen=True)
class BuilderStages(Chain):
    """One function per part of a mask; the defaults are right."""

    causal: Callable[..., Any] = causal
    real: Callable[..., Any] = real


@dataclass(frozen=True)
class Built:
    """What a call returned: the mask as 0 and 1, for so many queries and keys."""

    mask: Tensor
    additive: bool
    queries: int
    keys: int
    padding: bool
    kind: str


def examine(target: Any, name: str, options: Options, progress: Callable[[str], None]) -> Record:
    """Find out what is wrong with a mask."""
    record = Record(name)
    progress("building masks")
    built = first_built(record, target, options)
    claim = polarity([(where, f"mask: {text}") for where, text in texts(target)])
    if built is None:
        return record
    fit = simplest([built.mask], readings(built, claim), entries(), BuilderStages(), predictor(built))
    if fit is None:
        describe(record, built)
        return record
    write(record, built, fit, claim, read(target, {}).alignment)
    return record


def entries() -> list[Any]:
    """Mistakes that a mask by itself can have."""
    return [m for m in catalogue.mistakes() if m.searched and (m.family == "causal" or m.subject == "mask")]


def calls(target: Any, options: Options) -> Iterator[tuple[dict[str, Any], int, int, bool]]:
    """Arguments to try, with the numbers of queries and keys they ask for, and whether there is padding."""
    names = assign(target, ROLES)
    fixed = dict(options.settings)
    free = [
        p.name for p in parameters(target) if p.default is p.empty and p.name not in {*names.values(), *fixed}
    ]
    tokens = torch.where(real(LENGTHS, QUERIES), torch.arange(1, QUERIES + 1), 0)
    pad = {names["pad"]: 0} if "pad" in names else {}
    if "tokens" in names:
        yield {names["tokens"]: tokens, **pad, **fixed}, QUERIES, QUERIES, True
    if "lengths" in names:
        size = {names["length"]: QUERIES} if "length" in names else {}
        yield {names["lengths"]: LENGTHS, **size, **fixed}, QUERIES, QUERIES, True
    if {"queries", "keys"} <= names.keys():
        yield {names["queries"]: QUERIES, names["keys"]: KEYS, **fixed}, QUERIES, KEYS, False
    if {"length", "keys"} <= names.keys():
        yield {names["length"]: QUERIES, names["keys"]: KEYS, **fixed}, QUERIES, KEYS, False
    if "length" in names:
        yield {names["length"]: QUERIES, **fixed}, QUERIES, QUERIES, False
    if len(free) >= 2:
        yield {free[0]: QUERIES, free[1]: KEYS, **fixed}, QUERIES, KEYS, False
    if free:
        yield {free[0]: QUERIES, **fixed}, QUERIES, QUERIES, False
        yield {free[0]: tokens, **pad, **fixed}, QUERIES, QUERIES, True
        yield {free[0]: torch.zeros(BATCH, QUERIES, 8), **fixed}, QUERIES, QUERIES, False


def first_built(record: Record, target: Any, options: Options) -> Built | None:
    """The first call that gives a mask; None, with a finding, when the mask holds NaN.

    Raises:
        CannotCheck: None did.
    """
    problem = ""
    for arguments, queries, keys, padding in calls(target, options):
        try:
            found = tensors_in(call_quietly(target, (), arguments))
        except CallFailed as error:
            problem = problem or str(error)
            continue
        for tensor in found:
            if tensor.is_floating_point() and tensor.isnan().any():
                evidence = f"{tensor.isnan().sum().item()} of {tensor.numel()} numbers are NaN"
                record.find("mask-times-infinity", evidence, {}, smallest="one query, one key")
                return None
            mask = arranged(tensor, queries, keys, padding)
            if mask is not None:
                return binary(mask, queries, keys, padding)
        shapes = ", ".join(str(tuple(t.shape)) for t in found) or "no tensor"
        problem = problem or f"it returned {shapes} for {queries} queries and {keys} keys"
    raise CannotCheck(
        f"I found no way to get a mask out of it. {problem}\nI know functions of (length), (queries, keys), "
        "(lengths, max_len) and (tokens, pad). Other parameters can be given with --set NAME=VALUE."
    )


def arranged(mask: Tensor, queries: int, keys: int, padding: bool) -> Tensor | None:
    """The mask as (B, L, S) or (L, S), or (B, S) for padding alone."""
    squeezed = mask.reshape([n for n in mask.shape if n != 1] or [1])
    if squeezed.shape in ((queries, keys), (BATCH, queries, keys)) and not (
        padding and squeezed.shape == (BATCH, keys)
    ):
        return squeezed
    return squeezed if padding and squeezed.shape == (BATCH, keys) else None


def binary(mask: Tensor, queries: int, keys: int, padding: bool) -> Built:
    """0 and 1 from booleans, numbers, or 0 and minus infinity."""
    if mask.dtype == torch.bool:
        return Built(mask.double(), False, queries, keys, padding, "bool")
    if mask.min() < LOW:
        return Built((mask > LOW).double(), True, queries, keys, padding, "0 and -inf, to be added")
    kind = "0 and 1 as whole numbers" if not mask.is_floating_point() else "0 and 1 as floats"
    return Built(mask.double(), False, queries, keys, padding, kind)


def readings(built: Built, claim: Claim | None) -> list[BuilderReading]:
    """Conventions, most likely first."""
    polarities = [True] if built.additive else [True, False]
    if claim is not None and claim.what == "block":
        polarities.reverse()
    parts = [(True, False)] if not built.padding else [(False, True), (True, True)]
    near = [
        BuilderReading(keep, window.align, True, False, window)
        for keep in polarities
        for window in (
            seen_windows(built.mask.bool() == keep) if built.mask.shape == (built.queries, built.keys) else ()
        )
    ]
    return near + [
        BuilderReading(keep, align, future, padding)
        for keep in polarities
        for future, padding in parts
        for align in (("end", "start") if future and built.queries != built.keys else ("end",))
    ]


def predictor(built: Built) -> Callable[[BuilderReading, BuilderStages], list[Tensor]]:
    """From conventions and parts to the mask."""

    def predict(reading: BuilderReading, stages: BuilderStages) -> list[Tensor]:
        keep = torch.ones((), dtype=torch.bool)
        if reading.window is not None:
            keep = keep & reading.window.keep(built.queries, built.keys)
        elif reading.causal:
            sizes = Sizes(BATCH, 1, built.queries, built.keys, 1, 1)
            keep = keep & stages.causal(sizes, reading.align)
        if reading.padding:
            tokens = stages.real(LENGTHS, built.keys)
            keep = keep & (tokens[:, None, :] if reading.causal else tokens)
        return [(keep if reading.keep else ~keep).double().expand(built.mask.shape)]

    return predict


def write(record: Record, built: Built, fit: Fit, claim: Claim | None, alignment: Claim | None) -> None:
    """Mistakes and conventions of a mask."""
    reading: BuilderReading = fit.reading
    sizes = f"{built.queries} queries, {built.keys} keys"
    for made in fit.made:
        words: Mapping[str, object] = {**made.variant.words, "who": "its name"}
        record.find(
            made.mistake.name,
            f"{sizes}: with that assumed every entry fits",
            words,
            smallest="2 queries, 2 keys",
        )
    if built.additive:
        record.convention(f"mask of {built.kind}")
    else:
        actual = "lets True attend" if reading.keep else "blocks where True"
        if claim is not None and claim.what in ("keep", "block") and (claim.what == "keep") != reading.keep:
            words = {"claim": claim.where, "actual": actual}
            record.find(
                "mask-inverted", f"{sizes}: every entry is the opposite", words, smallest="1 query, 1 key"
            )
        else:
            record.convention(f"mask True {'= may attend' if reading.keep else '= blocked'} ({built.kind})")
    if reading.window is not None:
        record.convention(reading.window.words())
    if reading.causal and built.queries != built.keys:
        if alignment is not None and alignment.what != reading.align:
            words = {"actual": reading.align, "claim": alignment.where, "claimed": alignment.what}
            record.find("causal-wrong-end", sizes, words)
        else:
            record.convention(f"causal, aligned to the {reading.align}")


def describe(record: Record, built: Built) -> None:
    """Properties, when nothing known fits."""
    record.properties.append("no known mistake, and no pair of them, reproduces the mask")
    share = built.mask.mean().item()
    record.properties.append(f"{share:.0%} of its entries are {'unblocked' if built.additive else 'True'}")
