"""How a target reads what it is given. These are conventions: they are found and reported, never accused."""

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


def always_on() -> list[Reading]:
    """What a target may do by itself on every call: nothing, causality, ALiBi; what some recent models do."""
    usual = [Reading(), Reading(causal="end"), Reading(causal="start")]
    alibis = [replace(r, alibi=a, most=1) for a in ("distance", "key") for r in usual]
    caps = [replace(r, softcap=cap, most=0) for cap in SOFTCAPS for r in usual]
    sinks = [replace(r, sink=True, most=0) for r in usual]
    norms = [replace(r, qk_norm=True, most=0) for r in usual]
    return usual + alibis + caps + sinks + norms
