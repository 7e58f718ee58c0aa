"""What a run says in the terminal: a bar, a line per evaluation, and the small plots at the end."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from heedful.train.compare import Outcome
from heedful.train.curves import Curves
from heedful.train.health import Health
from heedful.train.recipe import Recipe
from heedful.train.run_folder import RunFolder
from heedful.train.trainer import Evaluation, Trainer, Update

LEVELS = "▁▂▃▄▅▆▇█"
MOST_BARS = 12
PLAIN_LEVELS = ".:-=+*#%"


def progress_bar(console: Console) -> Progress:
    """A bar with the loss, the rate of tokens and the time that remains."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TextColumn("{task.fields[speed]:,.0f} tokens/s"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def show_update(
    progress: Progress, task: TaskID, trainer: Trainer, update: Update, before: Health | None
) -> None:
    """Move the bar; print what an evaluation found, and which heads have changed since the one before."""
    speed = trainer.recipe.tokens_per_step / update.seconds
    progress.update(task, completed=update.step, loss=trainer.state.average, speed=speed)
    if update.evaluation is None:
        return
    line = evaluation_line(update.step, update.evaluation)
    progress.console.print(line, no_wrap=True, overflow="ellipsis")
    for change in changed_classes(before, update.evaluation.health):
        progress.console.print(Text(f"        {change}", "cyan"))
    for warning in update.evaluation.health.warnings:
        progress.console.print(Text(warning, "yellow"))


def changed_classes(before: Health | None, after: Health) -> Iterator[str]:
    """A sentence for each head whose class is new."""
    for layer, heads in enumerate(after.heads):
        for number, head in enumerate(heads):
            old = "mixed" if before is None else before.heads[layer][number].kind
            if head.kind != old:
                yield f"layer {layer}, head {number}: {old} -> {head.kind}"


def evaluation_line(step: int, evaluation: Evaluation) -> Text:
    """One line: the step, the held-out loss, whether it is the best so far, and how the model writes."""
    sample = " ".join(evaluation.sample.split())[:60]
    line = Text(f"{step:>6}  held-out loss {evaluation.loss:.3f}")
    line.append("  best" if evaluation.improved else "      ", "green")
    line.append(f"  {sample}", "dim")
    return line


def show_run(console: Console, folder: RunFolder) -> None:
    """The small plots of a run: loss, rate, and what every head looks at."""
    evaluations = list(folder.metrics("evaluation"))
    updates = list(folder.metrics("update"))
    bigram = folder.config["bigram_loss"]
    if not updates:
        return
    ends = (updates[0]["step"], updates[-1]["step"])
    console.print("\nLoss, in nats per token", style="bold")
    losses = {
        "training": _smooth([(entry["step"], entry["loss"]) for entry in updates]),
        "held out": [(entry["step"], entry["loss"]) for entry in evaluations],
        "table of pairs": [(step, bigram) for step in ends],
    }
    console.print(Curves(losses, x="update"))
    console.print("\nLearning rate", style="bold")
    console.print(
        Curves({"rate": [(entry["step"], entry["rate"]) for entry in updates]}, x="update", height=4)
    )
    if evaluations:
        console.print(heads_table(evaluations, plain=console.options.ascii_only))


def heads_table(evaluations: Sequence[Mapping[str, Any]], *, plain: bool = False) -> Table:
    """A row per head: its class on the held-out text, the weight on that pattern over training, and its entropy."""
    table = Table(
        title="Heads on the held-out text, over training", title_justify="left", box=None, pad_edge=False
    )
    for column in ("layer.head", "class at the end", "weight on it", "", "entropy", "largest score"):
        table.add_column(column)
    shown = range(0, len(evaluations), -(-len(evaluations) // MOST_BARS))
    histories = [evaluations[number]["health"]["heads"] for number in [*shown[:-1], -1]]
    for layer, heads in enumerate(histories[-1]):
        for number, head in enumerate(heads):
            past = [history[layer][number] for history in histories]
            pattern = head["kind"] if head["kind"] in head["shares"] else None
            shares = [one["shares"][pattern] for one in past] if pattern else []
            table.add_row(
                f"{layer}.{number}",
                head["kind"],
                sparkline(shares, 0, 1, plain=plain),
                f"{shares[-1]:.2f}" if shares else "",
                f"{past[0]['entropy']:.2f} to {head['entropy']:.2f}",
                f"{head['max_logit']:.1f}",
            )
    return table


def sparkline(values: Sequence[float], low: float, high: float, *, plain: bool = False) -> str:
    """A row of bars, one per value, from `low` to `high`."""
    levels = PLAIN_LEVELS if plain else LEVELS
    places = (min(max((value - low) / (high - low), 0), 1) for value in values)
    return "".join(levels[min(int(place * len(levels)), len(levels) - 1)] for place in places)


def comparison_table(outcomes: Iterable[Outcome], seeds: int) -> Table:
    """A row per schedule, over its seeds."""
    table = Table(title=f"Lowest held-out loss, mean and spread over {seeds} seeds", title_justify="left")
    for column in (
        "schedule",
        "peak rate",
        "held-out loss",
        "updates until 0.5 nats below pairs",
        "diverged",
    ):
        table.add_column(column, justify="left" if column == "schedule" else "right")
    for outcome in outcomes:
        loss = "" if math.isnan(outcome.mean) else f"{outcome.mean:.3f} ± {outcome.spread:.3f}"
        steps = "" if outcome.median_steps is None else str(outcome.median_steps)
        table.add_row(outcome.name, f"{outcome.peak:.2g}", loss, steps, f"{outcome.diverged} of {seeds}")
    return table


def comparison_curves(outcomes: Iterable[Outcome]) -> Curves:
    """The mean held-out loss of each schedule."""
    series = {}
    for outcome in outcomes:
        if outcome.curves:
            series[outcome.name] = [
                (points[0][0], sum(loss for _, loss in points) / len(points))
                for points in zip(*outcome.curves, strict=False)
            ]
    return Curves(series, x="update")


def schedule_curve(recipe: Recipe) -> Curves:
    """The rate of every update of a run."""
    return Curves({recipe.schedule: [(step, recipe.rate(step)) for step in range(recipe.steps)]}, x="update")


def _smooth(points: Sequence[tuple[int, float]], share: float = 0.95) -> list[tuple[int, float]]:
    smoothed, average = [], points[0][1]
    for step, value in points:
        average = share * average + (1 - share) * value
        smoothed.append((step, average))
    return smoothed
