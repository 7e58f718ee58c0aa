"""What `heedful train --compare` does: many runs one after the other, then a table and a plot."""

import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from heedful.train import terminal
from heedful.train.compare import Outcome, compare, recipes_for
from heedful.train.interrupts import Interrupts
from heedful.train.plots import draw_comparison
from heedful.train.problems import BadSetting, RunProblem
from heedful.train.recipe import Recipe
from heedful.train.running import SIGNAL, say
from heedful.train.trainer import Trainer, Update


class Stopped(Exception):
    """A signal came during this run; `finished` counts the runs of each schedule before it."""

    def __init__(self, trainer: Trainer, number: int, finished: dict[str, int]) -> None:
        super().__init__()
        self.trainer, self.number, self.finished = trainer, number, finished


class Watch:
    """Moves the bar, says what each run ended with, and leaves the comparison where a signal has come."""

    def __init__(self, progress: Progress, task: TaskID, interrupts: Interrupts) -> None:
        self.progress, self.task, self.interrupts = progress, task, interrupts
        self.finished: dict[str, int] = {}

    def __call__(self, trainer: Trainer, update: Update | None) -> None:
        """Told of a run that begins, and of each update."""
        name, state = f"{trainer.recipe.schedule}, seed {trainer.recipe.seed}", trainer.state
        self.progress.update(self.task, advance=0 if update is None else 1, description=name)
        if trainer.finished:
            schedule = trainer.recipe.schedule
            self.finished[schedule] = self.finished.get(schedule, 0) + 1
            loss = f"lowest held-out loss {state.best_loss:.3f} at update {state.best_step}"
            say(self.progress.console, f"{name}: {loss}")
        if self.interrupts.received is not None:
            raise Stopped(trainer, self.interrupts.received, self.finished)


def compare_schedules(console: Console, base: Recipe, names: str, seeds: int, parent: Path) -> int:
    """One run per schedule and seed, then a table and a plot."""
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if not chosen:
        raise BadSetting("schedule", "must name one at least; `heedful schedule` lists them.")
    numbers = range(base.seed, base.seed + seeds)
    recipes = recipes_for(base, chosen, numbers)
    folder = parent / time.strftime("compare-%Y-%m-%d-%H%M%S")
    folder.mkdir(parents=True, exist_ok=True)
    runs = len(recipes) * seeds
    say(console, f"Runs: {runs}, {base.steps:,} updates each. Schedules: {', '.join(recipes)}.\n{folder}")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Interrupts() as interrupts:
        try:
            with Progress(*columns, console=console, transient=True) as progress:
                task = progress.add_task("reading the text", total=runs * base.steps)
                watch = Watch(progress, task, interrupts)
                outcomes = compare(base, chosen, numbers, folder, watch)
        except Stopped as stopped:
            count = f"{sum(stopped.finished.values())} of {runs} runs"
            _say_what_is_kept(console, stopped.trainer, count, folder)
            missing = [name for name in recipes if stopped.finished.get(name, 0) < seeds]
            if missing:
                say(console, f"The comparison of the rest begins anew: --compare {','.join(missing)}")
            return SIGNAL + stopped.number
    _show(console, outcomes, recipes, seeds, folder)
    return 0


def _say_what_is_kept(console: Console, trainer: Trainer, finished: str, folder: Path) -> None:
    say(console, f"Stopped. Finished and kept: {finished}, in {folder}")
    if trainer.finished:
        return
    trainer.save()
    recipe = trainer.recipe
    say(
        console,
        f"The run of {recipe.schedule}, seed {recipe.seed}, is saved after {trainer.state.step} of {recipe.steps} "
        f"updates. Continue it with: heedful train --resume {trainer.folder.path}",
    )


def _show(
    console: Console, outcomes: list[Outcome], recipes: dict[str, list[Recipe]], seeds: int, folder: Path
) -> None:
    console.print(terminal.comparison_table(outcomes, seeds))
    console.print(terminal.comparison_curves(outcomes))
    rates = {
        name: [(step, first.rate(step)) for step in range(first.steps)]
        for name, (first, *_) in recipes.items()
    }
    curves = {outcome.name: outcome.curves for outcome in outcomes if outcome.curves}
    try:
        draw_comparison(curves, rates, folder / "comparison")
    except RunProblem as problem:
        say(console, str(problem))
    say(console, str(folder))
