"""Finds randomness where there should be none, and dropout that does not do what dropout does."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from heedful.checking.calling import CallFailed, Seen
from heedful.checking.cases import Case, Shape
from heedful.checking.construction import DROPOUT
from heedful.checking.exam import Exam
from heedful.checking.function_calls import Function
from heedful.checking.module_calls import Module
from heedful.checking.readings import Reading
from heedful.checking.record import Record
from heedful.checking.roles import parameters
from heedful.checking.search import Hypothesis, cast
from heedful.checking.stages import RIGHT, split

SAMPLES = 256
NOTHING = 1e-6


class NoDropout(TorchFunctionMode):
    """Makes torch's own dropout functions hand their input through."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Intercept every call of a torch function."""
        kwargs = dict(kwargs or {})
        if func in (torch.dropout, nn.functional.dropout):
            return args[0] if args else kwargs["input"]
        if func is nn.functional.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            kwargs.pop("dropout_p", None)
        return func(*args, **kwargs)


class Pattern(NamedTuple):
    """What dropout does to the weight of an only key: how often it becomes 0, and what it becomes otherwise."""

    zeros: float
    kept: float


class Noise(NamedTuple):
    """How two equal calls differ, and the caller with that taken out; None where it can't be."""

    gap: float
    held: bool
    pattern: Pattern | None
    caller: Any


def still(caller: Any, shape: Shape) -> Noise:
    """Call twice, and take dropout away if the answers differ."""
    case = caller.base(shape)
    first, again, other = (caller.observe(case, seed=seed).output for seed in (0, 0, 1))
    gap = (first - other).abs().nan_to_num(0.0).max().item()
    if gap <= NOTHING:
        return Noise(0.0, True, None, caller)
    try:
        pattern = dropout_pattern(caller, shape, unmistaken(caller))
    except (CallFailed, RuntimeError):
        pattern = None
    quiet = replace(caller, modes=(*caller.modes, NoDropout))
    calm = torch.equal(*(quiet.observe(case, seed=seed).output for seed in (0, 1)))
    return Noise(gap, torch.equal(first, again), pattern, quiet if calm else None)


def report_noise(record: Record, noises: list[Noise]) -> None:
    """Name the randomness: dropout, or something else."""
    loud = [n for n in noises if n.gap > 0]
    if not loud:
        return
    dropped = next((n for n in loud if n.pattern is not None and n.pattern.zeros > 0), None)
    calmed = next((n for n in loud if n.caller is not None), None)
    if dropped is not None and dropped.pattern is not None:
        evidence = f"{dropped.pattern.zeros:.0%} of the weights of an only key become 0"
        record.find("dropout-in-eval", evidence, {"difference": dropped.gap})
        judge_rescale(record, dropped.pattern)
    elif calmed is not None:
        evidence = "without torch's dropout two equal calls agree"
        record.find("dropout-in-eval", evidence, {"difference": calmed.gap})
    else:
        held = "" if loud[0].held else ", also with torch's generator held"
        words = {"difference": loud[0].gap, "held": held}
        record.find("not-repeatable", "the same inputs, twice", words)


def dropout_pattern(caller: Any, shape: Shape, hypothesis: Hypothesis) -> Pattern | None:
    """Run many samples with a single key, whose weight can only be 1; None when something else goes on."""
    case = caller.base(replace(shape, batch=SAMPLES, queries=1, keys=1))
    seen: Seen = caller.observe(case, seed=5)
    made, wanted = contexts(caller, case, seen, hypothesis)
    if made.shape != wanted.shape:
        return None
    ratio = (made * wanted).sum(-1) / (wanted * wanted).sum(-1)
    rest = (made - ratio[..., None] * wanted).norm(dim=-1) / wanted.norm(dim=-1)
    if rest.max() > 1e-3:
        return None
    gone = ratio.abs() < 1e-3
    kept = ratio[~gone]
    if kept.numel() == 0 or kept.max() - kept.min() > 1e-3 * kept.max().abs():
        return None
    return Pattern(gone.double().mean().item(), kept.mean().item())


def contexts(caller: Any, case: Case, seen: Seen, hypothesis: Hypothesis) -> tuple[Tensor, Tensor]:
    """Per head, what came out of the attention and, with its only key, must come out: (B, H, 1, D) each."""
    call = cast(caller.explain(case, hypothesis.reading, seen.form), torch.float64)
    stages = RIGHT.with_all(hypothesis.variants)
    assert stages is not None
    query, key, value = stages.project(call)
    if call.heads is not None:
        kv_heads = call.kv_heads or call.heads
        query = stages.split(query, call.heads)
        key, value = stages.split(key, kv_heads), stages.split(value, kv_heads)
    query, _, value = stages.operands(query, key, value)
    wanted = stages.spread(value, query.shape[1])
    made = seen.output
    if call.projections is not None and "output" in call.projections:
        weight, bias = call.projections["output"]
        made = (made if bias is None else made - bias) @ torch.linalg.pinv(weight).mT
    return made if seen.form == "bhld" else split(made, wanted.shape[1]), wanted


def unmistaken(caller: Any) -> Hypothesis:
    """What is assumed of a target before anything is known: no mistake, and the usual order of a fused matrix."""
    if isinstance(caller, Function):
        return Hypothesis(Reading())
    orders = ("", "qkv rhd", "kv rhd")
    return Hypothesis(Reading(order=next((o for o in orders if caller.view.matrices(o) is not None), "")))


def judge_rescale(record: Record, pattern: Pattern) -> None:
    """What dropout keeps must grow by 1 / (1 - p)."""
    wanted = 1 / (1 - pattern.zeros)
    if abs(pattern.kept - 1.0) < 1e-3 and wanted > 1.02:
        words = {"p": round(pattern.zeros, 1), "ratio": (1 - pattern.zeros) * pattern.kept}
        record.find(
            "dropout-without-rescale",
            f"weights that are kept become {pattern.kept:.2f} times as large",
            words,
        )


def training(exam: Exam, p: float | None) -> None:
    """Look at dropout in training mode.

    Args:
        exam: The examination so far.
        p: The probability the target was built with; None when that is not known.
    """
    record, caller, shape = exam.record, exam.caller, exam.shape
    if p is None or caller.modes or any(f.family == "module" for f in record.mistakes):
        return
    patterns = []
    for trial in in_training(caller):
        try:
            pattern = dropout_pattern(trial, shape, exam.best)
        except CallFailed:
            return
        patterns.append(pattern)
        if pattern is not None and pattern.zeros > 0:
            judge_rescale(record, pattern)
            returned_weights(exam, trial)
            return
    if patterns and all(q is not None and q.zeros == 0 for q in patterns):
        record.find("dropout-missing", "training and eval mode give the same answer", {"p": p})


def in_training(caller: Any) -> Iterator[Any]:
    """The caller in training mode; where a module has several dropout layers, with one of them on at a time."""
    if isinstance(caller, Function):
        constants: dict[str, Any] = dict(caller.constants) | {caller.names["dropout"]: DROPOUT}
        if "training" in caller.names:
            constants[caller.names["training"]] = caller.names["training"] != "deterministic"
        if "module" in caller.names:
            constants[caller.names["module"]] = copy.deepcopy(constants[caller.names["module"]]).train()
        yield replace(caller, constants=constants)
        return
    module = copy.deepcopy(caller.module).train()
    layers = [m for m in module.modules() if isinstance(m, nn.Dropout)]
    constants = dict(caller.constants) | (
        {caller.names["training"]: True} if "training" in caller.names else {}
    )
    if len(layers) < 2:
        yield replace(caller, module=module, constants=constants)
        return
    for chosen in layers:
        for layer in layers:
            layer.p = DROPOUT if layer is chosen else 0.0
        yield replace(caller, module=module, constants=constants)


def returned_weights(exam: Exam, caller: Any) -> None:
    """Whether the weights handed back are those before or after dropout."""
    record, claims = exam.record, exam.claims
    weights = caller.observe(caller.base(exam.shape)).weights
    if weights is None:
        return
    if (weights.sum(-1) - 1).abs().max() < 1e-4:
        return
    if claims.sums is not None:
        record.find(
            "weights-dropped", "in training mode their rows don't sum to 1", {"claim": claims.sums.where}
        )
        return
    record.convention("weights after dropout")


def probability(caller: Any, built: bool) -> float | None:
    """The dropout probability that is known to be asked for; None when nothing is."""
    if isinstance(caller, Function):
        others = [p.name for p in parameters(caller.function) if "drop" in p.name.lower()]
        known = caller.names.get("dropout") in caller.constants
        return DROPOUT if known and caller.array == "torch" and len(others) == 1 else None
    if not isinstance(caller, Module):
        return None
    layers = [m.p for m in caller.module.modules() if isinstance(m, nn.Dropout) and m.p > 0]
    return DROPOUT if built else (max(layers) if layers else None)
