"""Decodes token by token with a block's cache, and compares with the whole sequence at once."""

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from heedful.checking import catalogue
from heedful.checking.calling import CallFailed, call_quietly
from heedful.checking.cases import Case
from heedful.checking.chain import Chain
from heedful.checking.exam import Exam
from heedful.checking.fit import error_of, gap, simplest
from heedful.checking.module_calls import Module
from heedful.checking.record import compared
from heedful.checking.search import cast
from heedful.checking.stages import RIGHT, Call, attend

LENGTH = 5
PLANS = ((1, 1, 1, 1, 1), (2, 1, 2))
DIFFERENT = 1e-3


def remembered(step: int, new: int) -> list[int]:
    """The tokens whose keys a step sees: all so far, its own too."""
    return list(range(step + new))


def position(step: int) -> int:
    """The position of a step's first token: how many came before."""
    return step


def align(step: int) -> str | None:
    """To which end the mask of a step's tokens is aligned."""
    return "end"


def unwritten(written: int) -> int:
    """How many slots with zeros in them a step sees."""
    return 0


@dataclass(frozen=True)
class CacheStages(Chain):
    """What a cache does; the defaults are right."""

    remembered: Callable[..., Any] = remembered
    position: Callable[..., Any] = position
    align: Callable[..., Any] = align
    unwritten: Callable[..., Any] = unwritten


def has_cache(caller: Any) -> bool:
    """Whether a module can be called step by step."""
    return (
        isinstance(caller, Module)
        and caller.same
        and bool({"cache", "use_cache", "start"} & caller.names.keys())
    )


def cache_step(exam: Exam) -> None:
    """Decode in steps of one token, and of several; find out what the cache does wrong."""
    if not has_cache(exam.caller) or "cache-unwritten" in exam.best.names:
        return
    exam.progress("decoding with the cache")
    case = exam.caller.base(replace(exam.shape, queries=LENGTH, keys=LENGTH))
    way = first_working(exam.caller, case)
    if way is None:
        exam.record.untold.append("the cache: I found no way to call it step by step")
        return
    plans = [plan for plan in PLANS if way.works(case, plan)]
    seen = [x for plan in plans for x in way.decode(case, plan)]
    predict = partial(predicted, exam, case, plans)
    entries = [m.within(CacheStages) for m in catalogue.mistakes("cache") if m.searched]
    fit = simplest(seen, [None], entries, CacheStages(), predict)
    if fit is None:
        exam.record.properties.append(
            "decoding with the cache differs from the whole sequence at once, in no known way"
        )
        return
    right = error_of(seen, None, (), CacheStages(), predict)
    for made in fit.made:
        exam.record.find(made.mistake.name, compared(right, fit.error), dict(made.variant.words),
                         smallest=f"{LENGTH} tokens, one by one")  # fmt: skip
    if PLANS[1] not in plans:
        exam.record.convention("the cache takes one token at a time")
    not_cleared(exam, way, case)


def predicted(
    exam: Exam, case: Case, plans: Sequence[Sequence[int]], reading: None, stages: CacheStages
) -> list[Tensor]:
    """The outputs of every step of every plan."""
    return [x for plan in plans for x in steps(exam, case, plan, stages)]


def steps(exam: Exam, case: Case, plan: Sequence[int], stages: CacheStages) -> Iterator[Tensor]:
    """The outputs of one plan, step by step."""
    done, places = 0, []
    attention = RIGHT.with_all(exam.best.variants)
    assert attention is not None
    for new in plan:
        places += [stages.position(done) + i for i in range(new)]
        chosen = stages.remembered(done, new)
        call = step_call(exam, case, slice(done, done + new), chosen, places)
        empty = stages.unwritten(len(chosen))
        keep = visible(new, len(chosen), stages.align(done))
        keep = nn.functional.pad(keep, (0, empty), value=True)
        filled = attention.with_wrong({"operands": partial(zeros, count=empty)}) if empty else attention
        if filled is None:
            raise RuntimeError("two mistakes in one place")
        yield attend(replace(call, keep=keep), filled).output
        done += new


def step_call(exam: Exam, case: Case, new: slice, chosen: list[int], places: list[int]) -> Call:
    """One step: the new tokens ask, the chosen ones are asked."""
    query, key = case.query[:, :, new], case.query[:, :, chosen]
    step = replace(case, query=query, key=key, value=key)
    reading = replace(exam.best.reading, causal=None)
    call = cast(exam.caller.explain(step, reading, "ble"), torch.float64)
    where = (torch.tensor(places[new]), torch.tensor([places[i] for i in chosen]))
    return replace(call, places=where, unasked=None)


def visible(new: int, keys: int, alignment: str | None) -> Tensor:
    """Who sees whom in one step."""
    everything = torch.ones(new, keys, dtype=torch.bool)
    if alignment is None:
        return everything
    return everything.tril(keys - new if alignment == "end" else 0)


def zeros(query: Tensor, key: Tensor, value: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values followed by slots that nobody has written."""
    return query, nn.functional.pad(key, (0, 0, 0, count)), nn.functional.pad(value, (0, 0, 0, count))


@dataclass
class Way:
    """One style of decoding: a cache that is handed over, or one that is kept inside.

    Attributes:
        caller: The module.
        first: The cache of the first step; None when there is nothing to hand over.
        flags: Arguments of every step.
        starts: Parameter that is told the number of tokens so far.
    """

    caller: Module
    first: Callable[[], Any]
    flags: dict[str, Any]
    starts: str | None

    def decode(self, case: Case, plan: Sequence[int], module: nn.Module | None = None) -> list[Tensor]:
        """The outputs of every step, from an empty cache.

        Raises:
            CallFailed: A step raised, or its output has another shape than its input.
        """
        caller = replace(self.caller, module=module or copy.deepcopy(self.caller.module))
        cache, done, outputs = self.first(), 0, []
        for new in plan:
            case_now = replace(case, query=case.query[:, :, done : done + new])
            x = case_now.query
            arguments = caller.arguments(replace(case_now, key=x, value=x), torch.float32) | self.flags
            if "cache" in caller.names:
                arguments[caller.names["cache"]] = cache
            if self.starts:
                arguments[self.starts] = done
            result = call_quietly(caller.module, (), arguments)
            outputs.append(caller.read(result, replace(case_now, key=x, value=x)).output)
            cache = next_cache(result, outputs[-1], cache)
            if "cache" in caller.names and (cache is None or (isinstance(cache, (list, dict)) and not cache)):
                raise CallFailed("no cache came back")
            done += new
        return outputs

    def works(self, case: Case, plan: Sequence[int]) -> bool:
        """Whether all steps of a plan run."""
        try:
            self.decode(case, plan)
        except CallFailed:
            return False
        return True


def next_cache(result: object, output: Tensor, given: Any) -> Any:
    """The cache to hand to the next step: what came back beside the output, or the one that was changed in place."""
    if not isinstance(result, (tuple, list)):
        return given
    rest = [part for part in result if part is not None and not is_output(part, output)]
    objects = [part for part in rest if not isinstance(part, Tensor)]
    if objects:
        return objects[0]
    tensors = [part for part in rest if isinstance(part, Tensor) and part.ndim >= 3]
    return tuple(tensors[-2:]) if len(tensors) >= 2 else given


def is_output(part: object, output: Tensor) -> bool:
    """Whether this part of a result is the output."""
    return (
        isinstance(part, Tensor)
        and part.shape == output.shape
        and torch.equal(part.detach().double(), output)
    )


def first_working(caller: Module, case: Case) -> Way | None:
    """The first style that runs and whose second step depends on the first; else the first that runs."""
    names = caller.names
    flags = {names["use_cache"]: True} if "use_cache" in names else {}
    starts = names.get("start")
    beginnings: list[Callable[[], Any]] = [lambda: None]
    if "cache" in names:
        beginnings += [*cache_classes(caller.module), list, dict]
    running = [way for begin in beginnings if (way := Way(caller, begin, flags, starts)).works(case, (1, 1))]
    return next((way for way in running if remembers(way, case)), running[0] if running else None)


def cache_classes(module: nn.Module) -> list[Callable[[], Any]]:
    """Classes with Cache in their names, in the file of the module, that need no arguments."""
    home = sys.modules.get(type(module).__module__)
    found = [v for n, v in vars(home).items() if isinstance(v, type) and "cache" in n.lower()] if home else []
    working = []
    for candidate in found:
        try:
            candidate()
        except Exception:
            continue
        working.append(candidate)
    return working


def remembers(way: Way, case: Case) -> bool:
    """Whether the second token's output depends on the first token."""
    changed = case.query.clone()
    changed[:, :, 0] += 1.0
    other = case.with_side("query", changed)
    return gap(way.decode(case, (1, 1))[1], way.decode(other, (1, 1))[1]) > DIFFERENT


def not_cleared(exam: Exam, way: Way, case: Case) -> None:
    """A cache inside the module should not outlive the sequence."""
    if "cache" in exam.caller.names:
        return
    module = copy.deepcopy(exam.caller.module)
    fresh = way.decode(case, (1, 1))
    other = exam.caller.base(replace(exam.shape, batch=exam.shape.batch, queries=LENGTH, keys=LENGTH))
    way.decode(other.with_side("query", other.query.flip(2)), (1, 1, 1), module)
    for name in ("reset_cache", "clear_cache", "reset", "clear"):
        if callable(getattr(module, name, None)):
            getattr(module, name)()
            exam.record.convention(f"the cache is emptied by {name}()")
            break
    try:
        again = way.decode(case, (1, 1), module)
    except CallFailed as error:
        exam.record.untold.append(f"a second sequence: {error}")
        return
    away = max((a - b).abs().max().item() for a, b in zip(fresh, again, strict=True))
    if away > DIFFERENT:
        exam.record.find("cache-not-cleared", "the same two tokens, after another sequence", {"difference": away},
                         smallest="two sequences of one token")  # fmt: skip
