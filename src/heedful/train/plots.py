"""The plots of a run, as PNG and SVG: the only file that names matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from heedful.train.problems import RunProblem
from heedful.train.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLASS_COLORS = {
    "previous token": "#0072b2",
    "induction": "#d55e00",
    "first token": "#009e73",
    "same token": "#cc79a7",
    "mixed": "0.85",
}
INSTALL = "pip install matplotlib"


def draw_run(folder: RunFolder) -> list[Path]:
    """Draw the loss, the rate, and every head's entropy and class over training.

    Returns:
        The files written, in the folder of the run.

    Raises:
        RunProblem: matplotlib is not installed.
    """
    return [
        *_write(_loss_and_rate(folder), folder.path / "loss"),
        *_write(_heads(folder), folder.path / "heads"),
    ]


def draw_comparison(
    curves: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
    rates: Mapping[str, Sequence[tuple[float, float]]],
    path: Path,
) -> list[Path]:
    """Draw held-out losses of several schedules, one thin line per seed and their mean, over the rates.

    Args:
        curves: Of each schedule, for each seed, points (step, loss) at the same steps.
        rates: Of each schedule, points (step, rate).
        path: Where to, without a suffix.

    Returns:
        The files written.
    """
    figure = _figure(8, 7)
    losses, schedules = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    for number, (name, runs) in enumerate(curves.items()):
        color = f"C{number}"
        for run in runs:
            losses.plot(*zip(*run, strict=True), color=color, linewidth=0.5, alpha=0.6)
        mean = [
            (points[0][0], sum(loss for _, loss in points) / len(points))
            for points in zip(*runs, strict=False)
        ]
        losses.plot(*zip(*mean, strict=True), color=color, linewidth=2, label=name)
        schedules.plot(*zip(*rates[name], strict=True), color=color)
    losses.set_ylabel("held-out loss (nats)")
    losses.legend()
    schedules.set_ylabel("learning rate")
    schedules.set_xlabel("update")
    return _write(figure, path)


def _loss_and_rate(folder: RunFolder) -> "Figure":
    updates, evaluations = list(folder.metrics("update")), list(folder.metrics("evaluation"))
    figure = _figure(8, 6)
    loss, rate = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    steps = [entry["step"] for entry in updates]
    loss.plot(steps, [entry["loss"] for entry in updates], color="0.7", linewidth=0.6, label="training")
    held_out = [(entry["step"], entry["loss"]) for entry in evaluations]
    if held_out:
        loss.plot(*zip(*held_out, strict=True), color="C0", marker="o", markersize=3, label="held out")
    loss.axhline(folder.config["bigram_loss"], color="C3", linestyle=":", label="table of pairs, held out")
    loss.set_ylabel("loss (nats per token)")
    loss.legend()
    rate.plot(steps, [entry["rate"] for entry in updates], color="C1")
    rate.set_ylabel("learning rate")
    rate.set_xlabel("update")
    return figure


def _heads(folder: RunFolder) -> "Figure":
    """A row for each layer: the entropy of its heads on the left, the class of each head on the right."""
    evaluations = list(folder.metrics("evaluation"))
    layers, heads = folder.recipe.num_layers, folder.recipe.num_heads
    steps = [entry["step"] for entry in evaluations]
    figure = _figure(10, 1 + 1.8 * layers)
    panels = figure.subplots(layers, 2, sharex=True, squeeze=False)
    for layer, (entropies, classes) in enumerate(panels):
        for head in range(heads):
            seen = [entry["health"]["heads"][layer][head] for entry in evaluations]
            entropies.plot(steps, [one["entropy"] for one in seen], color=f"C{head}", label=f"head {head}")
            _draw_classes(classes, head, steps, [one["kind"] for one in seen])
        entropies.set_ylabel(f"layer {layer}\nentropy (nats)")
        classes.set_yticks(range(heads), [f"head {head}" for head in range(heads)])
        classes.set_ylim(heads - 0.5, -0.5)
    panels[0][0].legend(ncols=4, fontsize="small")
    panels[0][1].set_title("class on the held-out text", fontsize="medium")
    for panel in panels[-1]:
        panel.set_xlabel("update")
    _name_classes(figure)
    return figure


def _draw_classes(panel: "Axes", head: int, steps: Sequence[int], kinds: Sequence[str]) -> None:
    """A bar from each evaluation to the next, in the color of the head's class."""
    for step, end, kind in zip(steps, [*steps[1:], steps[-1]], kinds, strict=True):
        panel.barh(head, end - step, left=step, height=0.8, color=CLASS_COLORS.get(kind, "0.85"))


def _name_classes(figure: "Figure") -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=color, label=kind) for kind, color in CLASS_COLORS.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), fontsize="small")


def _figure(width: float, height: float) -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RunProblem(f"Plots need matplotlib: {INSTALL}") from None
    return Figure((width, height), layout="constrained")


def _write(figure: "Figure", path: Path) -> list[Path]:
    written = [path.with_suffix(".png"), path.with_suffix(".svg")]
    for file in written:
        figure.savefig(file, dpi=150)
    return written
