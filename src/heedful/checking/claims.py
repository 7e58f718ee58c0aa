"""What a target says about itself: in its docstring, its name, its parameter names."""

import inspect
import re
from dataclasses import dataclass
from typing import NamedTuple

from heedful.checking.roles import plain_name


class Claim(NamedTuple):
    """What is claimed, and where it is written."""

    what: str
    where: str


VALUE = re.compile(
    r"(?<![.\w])(?:(?P<true>true|nonzero|ones(?!\()|1s)|(?P<false>false|zeros(?!\()|0s)\b"
    r"|(?P<one>1)(?=\s*(?:=|:|->|means?|marks?|for|at|where|is|are|in)\b|\s*(?:=|:|->))"
    r"|(?P<zero>0)(?=\s*(?:=|:|->|means?|marks?|for|at|where|is|are|in)\b|\s*(?:=|:|->)))",
    re.IGNORECASE,
)
MEANING = re.compile(
    r"(?P<not>\b(?:not|never|cannot|can't|no)\W+(?:(?:be|to|may|allowed)\W+)*)?\b"
    r"(?:(?P<keep>keep|kept|attend\w*|visible|allowed|valid|seen|see|real|looks?|unmasked|take part|participat\w*|"
    r"included?)"
    r"|(?P<block>masked|mask out|block\w*|ignor\w*|hidden|pad|padd\w+|exclu\w*|remov\w*|forbid\w*|disallowed))\b",
    re.IGNORECASE,
)
OTHER = re.compile(r"causal|weights|training|average|bias|batch_first|dropout|default")
BEFORE = 160  # characters before a value in which the mask must be mentioned
NEAR = 60  # characters between a value and what it means
KEEP_NAMES = {"keep", "keep_mask", "visible", "allowed", "valid", "attend", "key_keep"}
BLOCK_NAMES = {"block_mask", "blocked", "masked", "is_pad"}
OTHERS = {
    "linear attention": r"linear(?:i[sz]ed)?[- ]attention|attention with (?:an? )?(?:\S+ ){0,4}feature maps?|performer",
    "sigmoid attention": r"sigmoid[- ]attention",
    "ReLU attention": r"relu[- ]attention",
    "cosine attention": r"cos(?:ine)?[- ](?:similarity[- ])?attention|(?:qk|query[- ]key)[- ]?norm\w*",
    "additive attention": r"(?:bahdanau|additive)[- ]attention",
    "attention with a sparse softmax": r"sparsemax|entmax",
    "softmax with one more term": r"softmax[- ]?(?:1\b|plus one|off[- ]by[- ]one)|softmax_?one\b",
    "differential attention": r"diff(?:erential)?[- ]attention",
    "talking-heads attention": r"talking[- ]heads",
}
NOT = re.compile(r"\b(?:not|no|unlike|than|instead of|versus|vs\.?)\W+(?:\w+\W+)?$", re.IGNORECASE)


@dataclass(frozen=True)
class Claims:
    """Everything the target says that a check can hold it to. None where it says nothing."""

    mask: Claim | None = None
    padding: Claim | None = None
    causal: Claim | None = None
    alignment: Claim | None = None
    layout: Claim | None = None
    mask_shape: Claim | None = None
    scaled_query: Claim | None = None
    weights: Claim | None = None
    sums: Claim | None = None
    rotary: Claim | None = None
    start: Claim | None = None
    other: Claim | None = None


def texts(target: object) -> list[tuple[str, str]]:
    """The docstrings that speak for a target, each with words for where it stands."""
    found = [("its docstring", inspect.getdoc(target) or "")]
    for name in ("forward", "__call__"):
        method = getattr(target, name, None)
        if (
            method is not None
            and inspect.isroutine(method)
            and "torch.nn.modules.module" not in str(getattr(method, "__module__", ""))
        ):
            found.append((f"the docstring of {name}", inspect.getdoc(method) or ""))
    own = inspect.getdoc(type(target)) if not (inspect.isclass(target) or inspect.isroutine(target)) else None
    if own and own != found[0][1]:
        found.append(("its docstring", own))
    return [(where, text) for where, text in found if text and not text.startswith("Initialize self")]


def first(patterns: dict[str, str], target_texts: list[tuple[str, str]]) -> Claim | None:
    """The first meaning whose pattern is found in a text."""
    for where, text in target_texts:
        flat = re.sub(r"\s+", " ", text)
        hits = [(m.start(), what) for what, p in patterns.items() if (m := re.search(p, flat, re.IGNORECASE))]
        if hits:
            return Claim(min(hits)[1], where)
    return None


def polarity(target_texts: list[tuple[str, str]]) -> Claim | None:
    """What True, or 1, means in the mask: "keep", "block", or "add" for a mask that is added."""
    for where, text in target_texts:
        flat = re.sub(r"\s+", " ", text)
        for value in VALUE.finditer(flat):
            before = flat[max(0, value.start() - BEFORE) : value.start()].lower()
            if not re.search(r"mask(?!ed_fill)[^\n]*$", before) or OTHER.search(before.rpartition("mask")[2]):
                continue
            after = re.split(
                r"[.;)]|, (?:false|true|0|1)\b", flat[value.end() : value.end() + NEAR], flags=re.IGNORECASE
            )
            meaning = MEANING.search(after[0])
            if meaning is None:
                continue
            positive = value.group("true") or value.group("one")
            keeps = bool(meaning.group("keep")) != bool(meaning.group("not"))
            return Claim("keep" if keeps == bool(positive) else "block", where)
    return first(
        {
            "add": r"additive mask|mask,? (?:that is |which is )?added to|added to the (?:attention )?(?:scores|logits)"
        },
        target_texts,
    )


def by_name(parameter: str | None) -> Claim | None:
    """What the parameter's own name says about True."""
    if parameter in KEEP_NAMES:
        return Claim("keep", f"the parameter name {parameter!r}")
    if parameter in BLOCK_NAMES:
        return Claim("block", f"the parameter name {parameter!r}")
    return None


def another_kind(called: str, target_texts: list[tuple[str, str]]) -> Claim | None:
    """What the target says it is, where that is another function than softmax attention."""
    named = plain_name(called).replace("attn", "attention").replace("_", " ")
    for where, text in [(f"the name {called}", named), *target_texts]:
        flat = re.sub(r"\s+", " ", text)
        for what, pattern in OTHERS.items():
            hit = re.search(rf"\b(?:{pattern})", flat, re.IGNORECASE)
            if hit and not NOT.search(flat[: hit.start()]):
                return Claim(what, where)
    return None


def layout_of(target_texts: list[tuple[str, str]]) -> Claim | None:
    """The layout of the query, where the text gives its shape in brackets."""
    for where, text in target_texts:
        shape = re.search(
            r"\b(?:q|query|queries|x)\b[^()\[\]]{0,40}[(\[]([^()\[\]]+)[)\]]", text, re.IGNORECASE
        )
        if shape is None:
            continue
        axes = [a.strip().lower() for a in re.split(r"[,\s]+", shape.group(1).strip()) if a.strip()]
        if any(a.startswith(("...", "*")) for a in axes):
            continue
        head = next(
            (i for i, a in enumerate(axes) if re.fullmatch(r"h|n_?heads?|num_?heads?|heads?|nh|hq", a)), None
        )
        if len(axes) == 3 and head is None:
            return Claim("bld", where)
        if len(axes) == 4 and head in (1, 2):
            return Claim("bhld" if head == 1 else "blhd", where)
    return None


def read(target: object, names: dict[str, str]) -> Claims:
    """Collect the claims of a target whose parameters play these roles."""
    about = texts(target)
    called = str(getattr(target, "__name__", type(target).__name__))
    mask = by_name(names.get("mask")) or polarity(about)
    causal = None
    if re.search(r"causal", called, re.IGNORECASE) and "mask" not in names and "causal" not in names:
        causal = Claim("causal", f"the name {called}")
    causal = causal or first({"causal": r"\bcausal (?:self[- ])?attention\b|\balways causal\b"}, about)
    return Claims(
        mask=mask,
        padding=by_name(names.get("padding")) or polarity(about),
        causal=causal,
        alignment=first(
            {
                "end": r"bottom[- ]right|lower[- ]right|aligned (?:to|at) the end|last query (?:is |at |to |sees )",
                "start": r"top[- ]left|upper[- ]left|aligned (?:to|at) the start|like is_causal",
            },
            about,
        ),
        layout=layout_of(about),
        mask_shape=first(
            {
                "bls": r"mask[^.()]{0,60}\((?:B|N|batch(?:_size)?)\s*,\s*\w+\s*,\s*\w+\)",
                "bs": r"mask[^.()]{0,60}\((?:B|N|batch(?:_size)?)\s*,\s*\w+\)",
            },
            about,
        ),
        scaled_query=first(
            {
                "query": r"(?:query|q) (?:that )?(?:is |must be |has been |comes )?(?:already |pre-?)\s?scaled"
                r"|pre-?scaled quer"
            },
            about,
        ),
        weights=first(
            {
                "head": r"weights[^.\n]{0,60}(?:per head|\(\s*\w+\s*,\s*(?:h|heads|num_heads|n_heads)\s*,)",
                "mean": r"weights[^.\n]{0,60}averag|averag\w* weights",
            },
            about,
        ),
        sums=first({"sum": r"weights[^.]{0,80}sums? to (?:1|one)|rows sum to (?:1|one)"}, about),
        rotary=first(
            {
                "interleaved": r"interleav|adjacent (?:pairs|columns)|gpt-?j|\bpairs \(2i|even and odd",
                "half": r"rotate_half|half[- ]split|neox|two halves|first half",
            },
            about,
        ),
        other=another_kind(called, about),
        start=first({"1": r"positions? (?:start|count|begin)\w* (?:from|at) (?:1|one)"}, about),
    )
