"""How a target reads what it is given. These are conventions: they are found and reported, never accused."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heedful.checking.cases import Case
from heedful.checking.stages import Call, Rotation, Window


@dataclass(frozen=True)
class Reading:
    """One combination of conventions.

    Attributes:
        mask: "keep" (True = may attend), "block" (True = blocked) or "add" (added to the scores).
        padding: The same for a padding mask.
        causal: Alignment of a causal mask that is always on: "start" or "end"; None when there is none.
        window: How far a query sees around its own position; None when there is no limit.
        flag: Alignment of the causal mask that a flag turns on.
        qk_norm: Whether the target normalizes queries and keys by itself.
        softcap: Largest score, where the target bends scores by tanh.
        sink: Whether it adds 1 to the sum of exponentials.
        alibi: "distance" or "key" when the target adds ALiBi by itself.
        rotary: Rotation that the target applies to queries and keys by itself.
        normed: Whether a module normalizes its input before it projects it.
        order: Order of a fused projection, as `projections.py` spells it.
        most: How many mistakes are tried together with it: fewer for what few people do.
    """

    mask: str = "keep"
    padding: str = "keep"
    causal: str | None = None
    window: Window | None = None
    flag: str | None = None
    qk_norm: bool = False
    softcap: float | None = None
    sink: bool = False
    alibi: str | None = None
    rotary: Rotation | None = None
    normed: bool = False
    order: str = ""
    most: int = 2

    def call(self, case: Case, form: str) -> Call:
        """The call as the target understands it, where heads are handed over split."""
        keep = case.mask
        if keep is not None and self.mask == "block":
            keep = ~keep
        padding = case.padding
        if padding is not None and self.padding == "block":
            padding = ~padding
        return Call(
            case.query,
            case.key,
            case.value,
            keep=keep,
            padding=padding,
            bias=case.bias,
            causal=self.flag if case.causal else self.causal,
            window=self.window,
            qk_norm=self.qk_norm,
            softcap=self.softcap,
            sink=self.sink,
            alibi=self.alibi,
            rotary=self.rotary,
            merged=form == "ble",
        )


SOFTCAPS = (20.0, 30.0, 50.0)


def always_on(told: Sequence[float] = (), measured: Sequence[float] = ()) -> list[Reading]:
    """What a target may do by itself on every call: nothing, causality, ALiBi; what some recent models do.

    Args:
        told: Largest scores that the target says it bends its own to.
        measured: Those that it seems to have; the usual ones are tried anyway.
    """
    usual = [Reading(), Reading(causal="end"), Reading(causal="start")]
    alibis = [replace(r, alibi=a, most=1) for a in ("distance", "key") for r in usual]
    caps = dict.fromkeys((*measured, *SOFTCAPS), 0) | dict.fromkeys(told, 1)
    capped = [replace(r, softcap=cap, most=most) for cap, most in caps.items() for r in usual]
    sinks = [replace(r, sink=True, most=0) for r in usual]
    norms = [replace(r, qk_norm=True, most=0) for r in usual]
    return usual + alibis + capped + sinks + norms
