"""What watching costs on real models: peak memory of each way in a process of its own, times taken in turn.

    python -m benchmarks.watch_models [smollm2|minilm ...] [--tokens 4096] [--sentences 256] [--rounds 3] [--json FILE]
    python -m benchmarks.watch_models --quick

smollm2: SmolLM2-135M as transformers loads it, real text, all 270 heads. minilm: MiniLM over sentences in padded
batches of 32. In each, "plain" is the model with transformers' "sdpa"; "later" watches it and asks nothing; "at once"
watches it with entropy, received and top-8; "heedful" is the same with heedful's attention, which answers in the same
pass. Before anything is measured, the output of the watched model is compared with the plain one's, bit by bit, and
that of "heedful" up to rounding.

Times are medians of ratios within a round, for one forward pass. Memory is the largest resident size of a fresh process
during one forward pass, loading left out: "peak" with the model in it, "above" without. --quick shows that all of it
runs (512 tokens, 32 sentences, one round) and measures nothing worth quoting.

Exit status 1 if on smollm2 "later" takes more than 2 times, or "heedful" more than 1.25 times the time or 1.3 times the
peak of "plain". Needs Linux, transformers, gguf, accelerate and the two packages with the models.
"""

import argparse
import ctypes
import json
import os
import pydoc_data.topics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import transformers

import heedful
from heedful import Entropy, Received, TopK, huggingface, models

from .timing import machine

QUESTIONS = (Entropy(), Received(), TopK(8))
WAYS = ("plain", "later", "at once", "heedful")
LIMITS = {"smollm2": {"later": {"time": 2.0}, "heedful": {"time": 1.25, "peak": 1.3}}}
BATCH = 32


class Case(NamedTuple):
    """A loaded model, how to run it, the bytes that its weights would need as matrices, and what it reads."""

    model: Any
    forward: Callable[[Any], Any]
    matrices: int
    reads: str


def smollm2(tokens: int, sentences: int) -> Case:
    """SmolLM2 on `tokens` tokens of the Python documentation."""
    (path,) = models.CATALOGUE["smollm2"].checked_files()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    text = " ".join(pydoc_data.topics.topics.values())
    ids = models.load("smollm2").tokenizer.encode(text[: 12 * tokens]).ids[:tokens]
    given = torch.tensor([ids])
    assert given.shape == (1, tokens)
    matrices = 4 * 30 * 9 * tokens**2
    return Case(model, lambda model: model(given, use_cache=False).logits, matrices, f"{tokens} tokens")


def minilm(tokens: int, sentences: int) -> Case:
    """MiniLM on `sentences` sentences of the Python documentation."""
    path = models.CATALOGUE["minilm"].checked_files()[0]
    model = transformers.BertModel.from_pretrained(path.parent).eval()
    text = " ".join(" ".join(pydoc_data.topics.topics.values()).split())
    chosen = [sentence for sentence in text.split(". ") if 40 < len(sentence) < 400][:sentences]
    assert len(chosen) == sentences
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent)
    batches = [
        tokenizer(chosen[i : i + BATCH], padding=True, return_tensors="pt")
        for i in range(0, sentences, BATCH)
    ]
    matrices = sum(4 * 6 * 12 * batch["input_ids"].numel() * batch["input_ids"].shape[1] for batch in batches)

    def forward(model: Any) -> torch.Tensor:
        return torch.cat([model(**batch).last_hidden_state.flatten() for batch in batches])

    longest = max(batch["input_ids"].shape[1] for batch in batches)
    return Case(model, forward, matrices, f"{sentences} sentences of at most {longest} tokens")


CASES = {"smollm2": smollm2, "minilm": minilm}


def run(way: str, case: Case) -> tuple[torch.Tensor, float]:
    """The output and the seconds of one forward pass."""
    if way == "heedful":
        huggingface.use(case.model)
    else:
        case.model.set_attn_implementation("sdpa")
    questions = () if way == "later" else QUESTIONS
    watching = nullcontext() if way == "plain" else heedful.watch(case.model, *questions)
    with torch.no_grad(), watching:
        start = time.perf_counter()
        output = case.forward(case.model)
        return output, time.perf_counter() - start


def check(case: Case) -> None:
    """Watching changes no bit; heedful's attention changes the last ones only."""
    plain = run("plain", case)[0]
    assert torch.equal(run("later", case)[0], plain), "watching changed the output"
    assert torch.equal(run("at once", case)[0], plain), "watching with questions changed the output"
    torch.testing.assert_close(run("heedful", case)[0], plain, atol=1e-3, rtol=1e-3)


def times_of(case: Case, rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, the ways in turn."""
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            times[way].append(run(way, case)[1])
    return times


def memory_of(name: str, way: str, options: argparse.Namespace) -> dict[str, float]:
    """Megabytes of a process of its own: "peak", and "above" the loaded model."""
    sizes = ["--tokens", str(options.tokens), "--sentences", str(options.sentences)]
    command = [sys.executable, "-m", "benchmarks.watch_models", name, *sizes, "--child", way]
    quiet = os.environ | {"TQDM_DISABLE": "1"}
    root = Path(__file__).parents[1]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=root, env=quiet)
    return json.loads(done.stdout.splitlines()[-1])


def child(case: Case, way: str) -> None:
    """Print what `memory_of` reads."""
    ctypes.CDLL(None).malloc_trim(0)  # what loading left behind would hide what the forward pass takes
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak of loading is forgotten
    run(way, case)
    peak = resident("VmHWM")
    print(json.dumps({"peak": peak, "above": peak - before}))


def resident(name: str) -> float:
    """A resident size of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e6


def measure(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per way; the model is gone from memory before processes are measured."""
    case = CASES[name](options.tokens, options.sentences)
    check(case)
    times = times_of(case, options.rounds)
    facts = {"case": name, "reads": case.reads, "matrices_mb": case.matrices / 1e6}
    del case
    memory = {way: memory_of(name, way, options) for way in WAYS}
    rows = []
    for way in WAYS:
        ratios = {
            "time": median(a / b for a, b in zip(times[way], times["plain"], strict=True)),
            "peak": memory[way]["peak"] / memory["plain"]["peak"],
            "above": memory[way]["above"] / memory["plain"]["above"],
        }
        limits = LIMITS.get(name, {}).get(way, {})
        over = {what: limit for what, limit in limits.items() if ratios[what] > limit}
        sizes = {f"{what}_mb": size for what, size in memory[way].items()}
        rows.append(
            {**facts, "way": way, "seconds": median(times[way]), **sizes, "ratios": ratios, "over": over}
        )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """A table of one case."""
    print(f"{rows[0]['case']}, {rows[0]['reads']}; as matrices: {rows[0]['matrices_mb']:.0f} MB")
    for row in rows:
        ratios = row["ratios"]
        print(
            f"  {row['way']:<8} {row['seconds']:7.2f} s  x {ratios['time']:4.2f}   peak {row['peak_mb']:6.0f} MB  "
            f"x {ratios['peak']:4.2f}   above the model {row['above_mb']:6.0f} MB  x {ratios['above']:4.2f}"
            + "".join(f"   over the limit of {limit} in {what}" for what, limit in row["over"].items()),
            flush=True,
        )


def positive(text: str) -> int:
    """A number of an option."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def main() -> int:
    """Print a table for each case; 1 if a limit is passed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.watch_models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)}; both if none is named")
    parser.add_argument("--tokens", type=positive, default=4096, help="length of the text for smollm2")
    parser.add_argument("--sentences", type=positive, default=256, help="how many minilm reads")
    parser.add_argument("--rounds", type=positive, default=3, help="how often each way is timed")
    parser.add_argument("--quick", action="store_true", help="512 tokens, 32 sentences, one round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    transformers.logging.disable_progress_bar()
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"there is no case {unknown[0]!r}; there are {', '.join(CASES)}")
    if options.quick:
        options.tokens, options.sentences, options.rounds = 512, BATCH, 1
    if options.child:
        child(CASES[options.cases[0]](options.tokens, options.sentences), options.child)
        return 0
    described = machine()
    print(f"{described['processor']}, {described['threads']} threads, load {described['load_average']}")
    rows = []
    for name in options.cases or CASES:
        rows += measure(name, options)
        show(rows[-len(WAYS) :])
    if options.json:
        report = {"machine": described, "quick": options.quick, "rounds": options.rounds, "rows": rows}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(any(row["over"] for row in rows) and not options.quick)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
