"""Examines a rotary embedding: a function or module that turns queries and keys, or one that makes the tables."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from heedful.checking import catalogue
from heedful.checking.calling import CallFailed
from heedful.checking.claims import Claims, read
from heedful.checking.fit import CLOSE, Fit, error_of, simplest
from heedful.checking.options import Options
from heedful.checking.problems import CannotCheck
from heedful.checking.record import Record, compared
from heedful.checking.rotation_calls import Way, ways
from heedful.checking.tables import TurnReading, TurnStages

RIGHT = TurnStages()
FAR = 3000
ROUGH = 0.05  # what angles in half precision cost among the first few tokens
FAR_OFF = 0.2  # of a typical value: more than casting the finished result to bfloat16 costs
LAYOUTS = {"half": "as halves (i and i + D/2)", "interleaved": "as neighbors (2i and 2i + 1)"}


def examine(target: Any, name: str, options: Options, progress: Callable[[str], None]) -> Record:
    """Find out what is wrong with a rotary embedding."""
    record = Record(name)
    progress("working out how to call it")
    claims = read(target, {})
    found = [w for w in ways(target, options) if agrees(w, claims) and w.works()]
    if not found:
        raise CannotCheck(
            "I found no way to call it. I know functions of (x), (x, positions), (q, k), (q, k, cos, sin), "
            "(x, cos, sin), (x, freqs_cis), (dim, length), and modules with such a forward."
        )
    progress("comparing with the right rotation")
    best = best_of(found)
    if best is None:
        describe(record, found[0])
        return record
    way, fit = best
    write(record, way, fit, claims)
    far_positions(record, way, fit)
    return record


def agrees(way: Way, claims: Claims) -> bool:
    """Whether the layout is the one that the target says it takes."""
    return claims.layout is None or way.layout in ("", claims.layout.what)


def best_of(found: list[Way]) -> tuple[Way, Fit] | None:
    """The way of calling under which the fewest mistakes explain everything."""
    fits = [(way, fit) for way in found if (fit := explain(way)) is not None]
    return min(fits, key=lambda pair: len(pair[1].made)) if fits else None


def explain(way: Way) -> Fit | None:
    """Conventions and mistakes that reproduce what this way of calling gives."""
    entries = [m for m in catalogue.mistakes("rotary") if m.searched]
    exact = simplest(way.seen(), readings(way), entries, RIGHT, way.predict)
    return exact or simplest(way.seen(), readings(way), [], RIGHT, way.predict, ROUGH)


def readings(way: Way) -> list[TurnReading]:
    """Conventions, most likely first."""
    starts = (0, 1) if way.own_positions else (0,)
    layouts = (("half", False), ("interleaved", False), ("interleaved", True))
    return [
        TurnReading(layout, gathered, sign, start)
        for start in starts
        for sign in (1, -1)
        for layout, gathered in layouts
    ]


def write(record: Record, way: Way, fit: Fit, claims: Claims) -> None:
    """Mistakes and conventions."""
    reading: TurnReading = fit.reading
    plain = error_of(way.seen(), reading, (), RIGHT, way.predict)
    for made in fit.made:
        record.find(made.mistake.name, compared(plain, fit.error), dict(made.variant.words),
                    smallest="two tokens, positions 0 and 1")  # fmt: skip
    if claims.rotary is not None and claims.rotary.what != reading.layout and way.tells_layout:
        words = {
            "actual": LAYOUTS[reading.layout],
            "claim": claims.rotary.where,
            "claimed": LAYOUTS[claims.rotary.what],
        }
        other = error_of(way.seen(), replace(reading, layout=claims.rotary.what), (), RIGHT, way.predict)
        record.find(
            "rotary-layout", f"read as claimed, the error is {other:.1e}", words, smallest="position 1, D = 4"
        )
    elif way.tells_layout:
        record.convention(f"columns pair up {LAYOUTS[reading.layout]}")
    if reading.gathered:
        record.convention("columns come back as halves (scores are the same when query and key both do)")
    record.convention(*way.words)
    if reading.sign < 0:
        record.convention("turns backward (scores are the same, weights of other models don't fit)")
    if reading.start:
        record.convention("positions from 1")


def far_positions(record: Record, way: Way, fit: Fit) -> None:
    """Thousands of tokens, where angles in half precision show; in float32 and in bfloat16."""
    if not way.own_positions:
        return
    stages = fit.stages(RIGHT)
    for dtype in (torch.float32, torch.bfloat16):
        long = way.longer(FAR, dtype)
        try:
            seen = long.seen()
        except CallFailed as error:
            if dtype is torch.float32:
                record.untold.append(f"{FAR} positions: {str(error).splitlines()[0]}")
            return
        wanted = long.predict(fit.reading, stages)
        away = (seen[0] - wanted[0]).abs().reshape(-1, *seen[0].shape[-2:]).amax((0, -1))
        if away.max() > FAR_OFF:
            words = {"position": int(away.argmax()), "error": away.max().item()}
            record.find("rotary-half-precision", f"{str(dtype).removeprefix('torch.')} inputs, {FAR} tokens", words,
                        smallest=f"position {int((away > FAR_OFF).nonzero()[0])}")  # fmt: skip
            return


def describe(record: Record, way: Way) -> None:
    """Properties, when nothing known fits."""
    record.properties.append("no known mistake, and no pair of them, reproduces the rotation")
    if way.tells_layout:
        seen, given = way.seen()[0], way.query
        change = (seen.norm(dim=-1) - given.norm(dim=-1)).abs().max().item()
        if change > 1e-3:
            record.properties.append(f"lengths change by up to {change:.2g}; a rotation keeps them")
        if (seen[..., :1, :] - given[..., :1, :]).abs().max() > CLOSE:
            record.properties.append("position 0 is not left alone")
