"""Peak memory above the inputs, each case in a process of its own.

    python benchmarks/memory.py [--backend NAME] [CASE ...]

Every case has its limit in megabytes; the exit status is 1 if one is over it. The matrix of 8 heads at 16,384 tokens
alone would be 8,600 MB.
"""

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

import heedful
from heedful import Entropy, Received, TopK, masks
from heedful.heads import rollout

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def ask(inputs: Inputs, backend: str) -> None:
    with torch.no_grad():
        reductions = (Entropy(), Received(), TopK(8))
        heedful.scaled_dot_product_attention(*inputs, masks.causal(), reduce=reductions, backend=backend)


def learn(inputs: Inputs, backend: str) -> None:
    inputs = tuple(x.requires_grad_() for x in inputs)
    output, weights = heedful.scaled_dot_product_attention(
        *inputs, masks.causal(), reduce=(Entropy(),), backend=backend
    )
    (output.square().mean() + weights.entropy().mean()).backward()


def own_penalty(inputs: Inputs, backend: str) -> None:
    inputs = tuple(x.requires_grad_() for x in inputs)
    output, weights = heedful.scaled_dot_product_attention(*inputs, masks.causal(), backend=backend)
    (output.square().mean() + weights.received("max").mean() + weights.topk(4).values.mean()).backward()


def follow(inputs: Inputs, backend: str) -> None:
    """Twelve layers; what differs between them is where each begins in the inputs, so that none is a copy."""
    length = inputs[0].shape[2] - 11
    with torch.no_grad():
        layers = [
            heedful.scaled_dot_product_attention(
                *(x[:, :, start : start + length] for x in inputs), masks.causal(), backend=backend
            ).weights
            for start in range(12)
        ]
        flow = rollout(layers, target=[-1, length // 2])
    assert torch.allclose(flow.sum(-1), torch.ones(1, 2), atol=1e-4)


CASES = {
    "ask": (16384, ask, 500, "output, entropy, received and top-8 in one pass, N = 16,384"),
    "learn": (8192, learn, 500, "forward and backward through output and entropy, N = 8,192"),
    "rollout": (8203, follow, 500, "attention and rollout through twelve layers, N = 8,192"),
    "penalty": (8192, own_penalty, 700, "backward through questions asked after the call, N = 8,192"),
}


def measure(name: str, backend: str) -> None:
    length, run, _, _ = CASES[name]
    run(tuple(torch.randn(1, 2, 64, 64) for _ in range(3)), backend)
    inputs = tuple(torch.randn(1, 8, length, 64) for _ in range(3))
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    start = time.perf_counter()
    run(inputs, backend)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print((peak - before) / 1e6, time.perf_counter() - start)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"some of {', '.join(CASES)}; all if none is named"
    )
    parser.add_argument("--backend", default="auto", help="backend to measure (default: auto)")
    parser.add_argument("--child", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        measure(options.child, options.backend)
        return 0
    over = False
    for name in options.cases or CASES:
        _, _, limit, what = CASES[name]
        command = [sys.executable, __file__, "--child", name, "--backend", options.backend]
        peak, seconds = map(
            float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        )
        over |= peak > limit
        print(f"{peak:6.0f} MB of {limit} allowed, {seconds:5.1f} s   {what}", flush=True)
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
