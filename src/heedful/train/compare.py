"""Several schedules on the same text with the same seeds: one table, one plot."""

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from heedful.train.checkpoint import put
from heedful.train.problems import Diverged
from heedful.train.recipe import Recipe
from heedful.train.run_folder import RunFolder
from heedful.train.trainer import Trainer, Update


@dataclass(frozen=True)
class Outcome:
    """What one schedule did.

    Attributes:
        name: Of the schedule.
        peak: Its highest rate.
        losses: Lowest held-out loss of each run that got through, in the order of the seeds.
        steps: Update at which each of them reached the goal, or None.
        diverged: Number of runs that diverged.
        curves: Points (step, held-out loss) of each run that got through.
    """

    name: str
    peak: float
    losses: tuple[float, ...]
    steps: tuple[int | None, ...]
    diverged: int
    curves: tuple[tuple[tuple[int, float], ...], ...]

    @property
    def mean(self) -> float:
        """Mean of the losses; not a number where no run got through."""
        return statistics.fmean(self.losses) if self.losses else math.nan

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds; 0 for a single run."""
        return statistics.stdev(self.losses) if len(self.losses) > 1 else 0.0

    @property
    def median_steps(self) -> int | None:
        """Median update at which the goal was reached; None where fewer than half of the runs reached it."""
        reached = sorted(math.inf if step is None else step for step in self.steps)
        middle = reached[len(reached) // 2] if reached else math.inf
        return None if middle == math.inf else int(middle)


def recipes_for(base: Recipe, names: Sequence[str], seeds: Sequence[int]) -> dict[str, list[Recipe]]:
    """A recipe for every schedule and seed. `noam` sets its own rate, the others take that of `base`."""
    changed: dict[str, list[Recipe]] = {}
    for name in dict.fromkeys(names):
        rate = None if name == "noam" else base.lr
        changed[name] = [
            dataclasses.replace(base, schedule=name, lr=rate, seed=seed, patience=None) for seed in seeds
        ]
    return changed


def compare(
    base: Recipe,
    names: Sequence[str],
    seeds: Sequence[int],
    parent: Path,
    watch: Callable[[Trainer, Update | None], None],
) -> list[Outcome]:
    """Train once per schedule and seed. Text, start values and order depend on the seed alone, so they are the same.

    Args:
        base: The recipe, but for the schedule and the seed.
        names: Schedules.
        seeds: At least one; three or more show how much is chance.
        parent: Folder for the folders of the runs; `comparison.json` is written there too.
        watch: Called with each run when it begins, without an update, and after each of its updates.

    Returns:
        What each schedule did, in the order of `names`.

    Cost:
        One run per schedule and seed.
    """
    outcomes = []
    for name, recipes in recipes_for(base, names, seeds).items():
        folders = []
        for recipe in recipes:
            trainer = Trainer.start(recipe, parent / f"{name}-{recipe.seed}")
            try:
                watch(trainer, None)
                for update in trainer.updates():
                    watch(trainer, update)
                folders.append(trainer.folder)
            except Diverged:
                continue
        outcomes.append(_outcome(name, recipes, folders))
        data = {
            "recipe": base.to_json(),
            "seeds": list(seeds),
            "outcomes": [dataclasses.asdict(o) for o in outcomes],
        }
        put(parent / "comparison.json", (json.dumps(data, indent=2) + "\n").encode())
    return outcomes


def _outcome(name: str, recipes: list[Recipe], folders: list[RunFolder]) -> Outcome:
    peak = max(recipes[0].rate(step) for step in range(recipes[0].steps))
    curves = tuple(
        tuple((entry["step"], entry["loss"]) for entry in folder.metrics("evaluation") if entry["step"])
        for folder in folders
    )
    losses = tuple(min(loss for _, loss in curve) for curve in curves)
    goals = [folder.config["bigram_loss"] - 0.5 for folder in folders]
    steps = tuple(
        next((step for step, loss in curve if loss <= goal), None)
        for curve, goal in zip(curves, goals, strict=True)
    )
    return Outcome(name, peak, losses, steps, len(recipes) - len(folders), curves)
