"""Position encodings, trained alike: held-out loss at the length of training, and at twice that.

    python benchmarks/train_positions.py --steps 400 --seeds 3

A Markdown table is printed, with mean and spread over the seeds. The learned table of positions is left out: it ends
where training ended.
"""

import argparse
import dataclasses
import statistics
import tempfile
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from heedful.train.batches import Batches
from heedful.train.health import examine
from heedful.train.recipe import Recipe
from heedful.train.trainer import Trainer

POSITIONS = ("sinusoidal", "rotary", "alibi", "none")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    base = Recipe(
        num_layers=2,
        embed_dim=64,
        context=arguments.context,
        batch=max(1, 1024 // arguments.context),
        steps=arguments.steps,
        warmup=60,
        lr=0.006,
        eval_every=arguments.steps,
        patience=None,
        echo=0.0,
    )
    rows = []
    with Progress(console=Console(stderr=True)) as progress, tempfile.TemporaryDirectory() as folder:
        task = progress.add_task("training", total=len(POSITIONS) * arguments.seeds * arguments.steps)
        for position in POSITIONS:
            losses = []
            for seed in range(arguments.seeds):
                recipe = dataclasses.replace(base, position=position, seed=seed)
                trainer = Trainer.start(recipe, Path(folder))
                for _ in trainer.updates():
                    progress.update(task, advance=1, description=f"{position}, seed {seed}")
                losses.append([held_out_loss(trainer, factor * recipe.context) for factor in (1, 2)])
            rows.append((position, *zip(*losses, strict=True)))

    print(
        f"{base.steps} updates of {base.tokens_per_step} tokens, {arguments.seeds} seeds, torch {torch.__version__}\n"
    )
    print(f"| position | {base.context} tokens | {2 * base.context} tokens |\n|---|---|---|")
    for position, *columns in rows:
        print(f"| {position} | {' | '.join(map(mean_and_spread, columns))} |")


def held_out_loss(trainer: Trainer, length: int) -> float:
    """Nats per token over the held-out text, in windows of that length."""
    corpus = trainer.corpus
    loss, _ = examine(
        trainer.model.eval(), Batches(corpus.held_out, corpus.begin, length, 8), len(corpus.held_out)
    )
    return loss


def mean_and_spread(values: tuple[float, ...]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.3f} ± {spread:.3f}"


if __name__ == "__main__":
    main()
