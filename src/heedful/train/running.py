"""What the commands do: start, resume, look for a rate; each returns the exit code. `comparing` has the comparison."""

import inspect
import math
from contextlib import nullcontext
from pathlib import Path

import torch
from rich.console import Console

from heedful.train import terminal
from heedful.train.batches import Batches
from heedful.train.curves import Curves
from heedful.train.interrupts import Interrupts
from heedful.train.learning import loss_of, new_model, new_optimizer
from heedful.train.plots import draw_run
from heedful.train.problems import Diverged, RunProblem
from heedful.train.rate_finder import range_test
from heedful.train.recipe import Recipe
from heedful.train.schedules import SCHEDULES
from heedful.train.text import load_corpus, require_length
from heedful.train.trainer import Trainer

# What a shell adds to the number of the signal that ended a program.
SIGNAL = 128


def use_threads(number: int) -> None:
    """Compute on that many cores."""
    torch.set_num_threads(number)


def say(console: Console, text: str) -> None:
    """Print as it is: paths and commands are never wrapped, so that they can be copied."""
    console.print(text, markup=False, soft_wrap=True)


def start(console: Console, recipe: Recipe, parent: Path) -> int:
    """A new run, from its first update to its plots."""
    return _run(console, Trainer.start(recipe, parent))


def resume(console: Console, path: Path) -> int:
    """The rest of a run that was stopped."""
    trainer = Trainer.resume(path)
    say(
        console,
        f"{trainer.folder.path} is finished: nothing is left to do."
        if trainer.finished
        else f"Continuing {trainer.folder.path} after {trainer.state.step} of {trainer.recipe.steps} updates.",
    )
    return _run(console, trainer)


def _run(console: Console, trainer: Trainer) -> int:
    recipe, folder = trainer.recipe, trainer.folder
    size = sum(parameter.numel() for parameter in trainer.model.parameters())
    say(
        console,
        f"{trainer.corpus.name}: {len(trainer.corpus.train):,} tokens to learn from, "
        f"{len(trainer.corpus.held_out):,} held out, {trainer.corpus.documents} documents\n"
        f"{size:,} parameters, {recipe.schedule} schedule, seed {recipe.seed}, "
        f"{str(trainer.dtype).removeprefix('torch.')}\n"
        f"A table of pairs needs {folder.config['bigram_loss']:.3f} nats per token on the held-out text.",
    )
    try:
        with Interrupts() as interrupts, terminal.progress_bar(console) as progress:
            task = progress.add_task(
                "training", total=recipe.steps, completed=trainer.state.step, loss=0.0, speed=0.0
            )
            health = None
            for update in trainer.updates():
                terminal.show_update(progress, task, trainer, update, health)
                health = update.evaluation.health if update.evaluation else health
                if interrupts.received is not None:
                    break
    except Diverged:
        _finish(console, trainer)
        raise
    if interrupts.received is not None and not trainer.finished:
        trainer.save()
        say(console, f"Stopped and saved. Continue with: heedful train --resume {folder.path}")
        return SIGNAL + interrupts.received
    _finish(console, trainer)
    return 0


def _finish(console: Console, trainer: Trainer) -> None:
    """The small plots, the large ones, and what to do next."""
    state, folder = trainer.state, trainer.folder
    terminal.show_run(console, folder)
    try:
        written = draw_run(folder)
        say(console, f"\nPlots: {', '.join(file.name for file in written)}")
    except RunProblem as problem:
        say(console, f"\n{problem}")
    if state.step == 0:
        return
    below = folder.config["bigram_loss"] - state.best_loss
    early = (
        " The loss had stopped getting better."
        if state.step < trainer.recipe.steps and trainer.finished
        else ""
    )
    say(
        console,
        f"{state.step} updates in {state.seconds:.0f} s.{early} Lowest held-out loss {state.best_loss:.3f} at update "
        f"{state.best_step}, {abs(below):.2f} nats {'below' if below >= 0 else 'above'} a table of pairs.\n"
        f"{folder.path}\n"
        f'Look at it: heedful see --model {folder.path} "Once upon a time"',
    )


def find_rate(console: Console, recipe: Recipe) -> int:
    """A range test on the recipe's model and text."""
    corpus = load_corpus(recipe.text, kind=recipe.tokens)
    require_length(corpus, recipe.context)
    model = new_model(recipe, corpus.vocabulary)
    batches = Batches(corpus.train, corpus.begin, recipe.context, recipe.batch, recipe.seed)
    with console.status("raising the rate") if console.is_terminal else nullcontext():
        found = range_test(
            model,
            new_optimizer(model, recipe),
            lambda step: loss_of(model, batches.at(step, recipe.echo)),
            clip=recipe.clip,
        )
    console.print("Smoothed loss against the rate, on a logarithmic scale", style="bold")
    console.print(Curves({"loss": _logarithmic(found.rates, found.losses)}, x="log10 of the rate"))
    say(
        console,
        f"The loss fell fastest at {found.suggestion:.1e} and was lowest at {found.limit:.1e}.\n"
        f"Try: heedful train --lr {found.suggestion:.1e}",
    )
    return 0


def list_schedules(console: Console) -> None:
    """Every schedule with the first line of its documentation."""
    for name, function in SCHEDULES.items():
        say(console, f"{name:<13} {_first_line(function)}")


def show_schedule(console: Console, recipe: Recipe, *, plot: bool) -> None:
    """The formula of a schedule and its rates at a few updates, or at all of them as a curve."""
    say(console, f"{recipe.schedule}: {_first_line(SCHEDULES[recipe.schedule])}")
    if plot:
        console.print(terminal.schedule_curve(recipe))
    shown = sorted({0, recipe.warm_up - 1, recipe.warm_up, recipe.steps // 2, recipe.steps - 1, recipe.steps})
    for step in shown:
        if 0 <= step <= recipe.steps:
            note = "after the end" if step == recipe.steps else f"update {step + 1}"
            say(console, f"{note:<14} {recipe.rate(step):.3g}")


def _first_line(function: object) -> str:
    return (inspect.getdoc(function) or "").split("\n")[0]


def _logarithmic(rates: tuple[float, ...], losses: tuple[float, ...]) -> list[tuple[float, float]]:
    return [(math.log10(rate), loss) for rate, loss in zip(rates, losses, strict=True)]
