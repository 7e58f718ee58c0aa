"""What watching costs on real models: peak memory of each way in a process of its own, times taken in turn.

    python benchmarks/watch_models.py [smollm2|minilm ...] [--tokens 4096] [--rounds 3]

smollm2: SmolLM2-135M as transformers loads it, real text, all 270 heads. minilm: MiniLM over 256 sentences in padded
batches of 32. In each, "plain" is the model with transformers' "sdpa"; "later" watches it and asks nothing; "at once"
watches it with entropy, received and top-8; "heedful" is the same with heedful's attention, which answers in the same
pass. Before anything is measured, logits of the watched model are compared with the plain one's, bit by bit. Needs
transformers, gguf, accelerate and the two packages with the models.
"""

import argparse
import pydoc_data.topics
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch

import heedful
from heedful import Entropy, Received, TopK, huggingface, models

QUESTIONS = (Entropy(), Received(), TopK(8))
WAYS = ("plain", "later", "at once", "heedful")
LIMITS = {"later": (2.0, None), "heedful": (1.25, 1.3)}


def smollm2(tokens: int) -> tuple[Any, Callable[[Any], Any], int]:
    """The model, how to run it, and the bytes that its weights would need as matrices."""
    from transformers import AutoModelForCausalLM

    (path,) = models.CATALOGUE["smollm2"].checked_files()
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    text = " ".join(pydoc_data.topics.topics.values())
    reader = models.load("smollm2").tokenizer
    ids = torch.tensor([reader.encode(text[: 12 * tokens]).ids[:tokens]])
    return model, lambda model: model(ids, use_cache=False).logits, 4 * 30 * 9 * tokens**2


def minilm(_: int) -> tuple[Any, Callable[[Any], Any], int]:
    """The same for 256 sentences of the Python documentation, in padded batches of 32."""
    from transformers import AutoTokenizer, BertModel

    path = models.CATALOGUE["minilm"].checked_files()[0]
    model = BertModel.from_pretrained(path.parent).eval()
    text = " ".join(" ".join(pydoc_data.topics.topics.values()).split())
    sentences = [sentence for sentence in text.split(". ") if 40 < len(sentence) < 400][:256]
    tokenizer = AutoTokenizer.from_pretrained(path.parent)
    batches = [
        tokenizer(sentences[i : i + 32], padding=True, return_tensors="pt")
        for i in range(0, len(sentences), 32)
    ]
    matrices = sum(4 * 6 * 12 * batch["input_ids"].numel() * batch["input_ids"].shape[1] for batch in batches)
    return model, lambda model: [model(**batch).last_hidden_state for batch in batches][-1], matrices


CASES = {"smollm2": smollm2, "minilm": minilm}


def run(way: str, model: Any, forward: Callable[[Any], Any]) -> tuple[Any, float]:
    """The output and the seconds of one forward pass."""
    if way == "heedful":
        huggingface.use(model)
    else:
        model.set_attn_implementation("sdpa")
    watching = (
        nullcontext() if way == "plain" else heedful.watch(model, *(() if way == "later" else QUESTIONS))
    )
    with torch.no_grad(), watching:
        start = time.perf_counter()
        output = forward(model)
        return output, time.perf_counter() - start


def peak_of(case: str, way: str, tokens: int) -> float:
    """Megabytes above the loaded model, measured in a process of its own."""
    command = [sys.executable, __file__, case, "--tokens", str(tokens), "--child", way]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def child(case: str, way: str, tokens: int) -> None:
    model, forward, _ = CASES[case](tokens)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading
    run(way, model, forward)
    peak = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    print((int(peak.split()[1]) * 1024 - before) / 1e6, int(peak.split()[1]) * 1024 / 1e6)


def main() -> int:
    """Print a table for each case; 1 if a limit is passed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="which; both if none is named")
    parser.add_argument("--tokens", type=int, default=4096, help="length of the text for smollm2")
    parser.add_argument("--rounds", type=int, default=3, help="how often each way is timed")
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.cases[0], options.child, options.tokens)
        return 0
    over = False
    for case in options.cases or CASES:
        model, forward, matrices = CASES[case](options.tokens)
        plain = run("plain", model, forward)[0]
        assert torch.equal(run("at once", model, forward)[0], plain), "watching changed the output"
        torch.testing.assert_close(run("heedful", model, forward)[0], plain, atol=1e-3, rtol=1e-3)
        times = {way: [] for way in WAYS}
        for _ in range(options.rounds):
            for way in WAYS:
                times[way].append(run(way, model, forward)[1])
        del model, plain
        peaks = {way: peak_of(case, way, options.tokens) for way in WAYS}
        print(f"{case}: the matrices alone would be {matrices / 1e9:.1f} GB")
        for way in WAYS:
            ratio = median(a / b for a, b in zip(times[way], times["plain"], strict=True))
            memory = peaks[way] / peaks["plain"]
            passed = [
                limit
                for limit, x in zip(LIMITS.get(way, (None, None)), (ratio, memory), strict=True)
                if limit and x > limit
            ]
            over |= bool(passed)
            print(
                f"  {way:<8} {median(times[way]):7.2f} s  x {ratio:4.2f}   peak {peaks[way]:6.0f} MB  x {memory:4.2f}"
                + (f"   over the limit of {passed}" if passed else "")
            )
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
