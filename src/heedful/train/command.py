"""`heedful train` and `heedful schedule`."""

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.train import options
from heedful.train.recipe import Recipe

if TYPE_CHECKING:
    from heedful.train.problems import BadSetting, RunProblem


def train(
    ctx: typer.Context,
    text: options.Text = None,
    tokens: options.Tokens = Recipe.tokens,
    context: options.Context = Recipe.context,
    echo: options.Echo = Recipe.echo,
    num_layers: options.NumLayers = Recipe.num_layers,
    num_heads: options.NumHeads = Recipe.num_heads,
    num_kv_heads: options.NumKvHeads = Recipe.num_kv_heads,
    embed_dim: options.EmbedDim = Recipe.embed_dim,
    position: options.Position = Recipe.position,
    qk_norm: options.QkNorm = Recipe.qk_norm,
    dropout: options.Dropout = Recipe.dropout,
    steps: options.Steps = Recipe.steps,
    batch: options.Batch = Recipe.batch,
    accumulate: options.Accumulate = Recipe.accumulate,
    schedule: options.ScheduleName = Recipe.schedule,
    lr: options.Lr = Recipe.lr,
    warmup: options.Warmup = Recipe.warmup,
    floor: options.Floor = Recipe.floor,
    weight_decay: options.WeightDecay = Recipe.weight_decay,
    clip: options.Clip = Recipe.clip,
    precision: options.Precision = Recipe.precision,
    seed: options.Seed = Recipe.seed,
    eval_every: options.EvalEvery = Recipe.eval_every,
    patience: options.Patience = Recipe.patience or 0,
    resume: options.Resume = None,
    compare: options.Compare = None,
    seeds: options.Seeds = 3,
    find_lr: options.FindLr = False,
    runs: options.Runs = Path("runs"),
    threads: options.Threads = None,
) -> None:
    """Train a small transformer on real text, and watch its heads form.

    Every run has a folder with its recipe, metrics, checkpoints and plots. Ctrl-C saves, and
    says how to continue.

    \b
    Start with:
      heedful train                                   about five minutes on two cores
      heedful train --text book.txt --schedule noam
      heedful train --compare constant,cosine,noam,wsd
      heedful train --resume runs/latest
    Then:
      heedful see --model runs/latest "Once upon a time"
    """  # noqa: D301 (typer reads the sign \b itself)
    from rich.console import Console

    from heedful.train import comparing, running
    from heedful.train.problems import RunProblem

    console = Console(highlight=False)
    try:
        if threads is not None:
            running.use_threads(threads)
        if resume is not None:
            _refuse_more(ctx)
            code = running.resume(console, resume)
        else:
            recipe = _recipe(ctx)
            if compare is not None:
                code = comparing.compare_schedules(console, recipe, compare, seeds, runs)
            elif find_lr:
                code = running.find_rate(console, recipe)
            else:
                code = running.start(console, recipe, runs)
    except RunProblem as problem:
        _refuse_option(problem, ctx)
        typer.echo(str(problem), err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


def schedule(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Which one to show. Without it, all are listed.")
    ] = None,
    steps: options.Steps = Recipe.steps,
    lr: options.Lr = Recipe.lr,
    warmup: options.Warmup = Recipe.warmup,
    floor: options.Floor = Recipe.floor,
    embed_dim: options.EmbedDim = Recipe.embed_dim,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the rate of every update.")] = False,
) -> None:
    """Show a learning-rate schedule: its formula, its rates, and with --plot its curve.

    \b
    Examples:
      heedful schedule
      heedful schedule noam --plot
      heedful schedule cosine --steps 500 --warmup 50 --lr 0.001 --plot
    """  # noqa: D301
    from rich.console import Console

    from heedful.train import running
    from heedful.train.problems import BadSetting

    console = Console(highlight=False)
    if name is None:
        running.list_schedules(console)
        return
    try:
        recipe = Recipe(schedule=name, steps=steps, lr=lr, warmup=warmup, floor=floor, embed_dim=embed_dim)
    except BadSetting as problem:
        raise _bad_option(problem, "NAME") from None
    running.show_schedule(console, recipe, plot=plot)


def _recipe(ctx: typer.Context) -> Recipe:
    """The recipe that the options describe."""
    fields = [field.name for field in dataclasses.fields(Recipe) if field.name in ctx.params]
    settings = {name: ctx.params[name] for name in fields}
    settings["text"] = tuple(str(path.resolve()) for path in settings["text"] or ())
    settings["patience"] = settings["patience"] or None
    return Recipe(**settings)


def _refuse_more(ctx: typer.Context) -> None:
    """A run continues with its own settings, so none may stand beside --resume."""
    given = [name for name in ctx.params if str(ctx.get_parameter_source(name)).endswith("COMMANDLINE")]
    surplus = [_option(name) for name in given if name not in ("resume", "threads")]
    if surplus:
        raise typer.BadParameter(
            f"a run continues with its own settings; leave out {', '.join(surplus)}.", param_hint="'--resume'"
        )


def _refuse_option(problem: "RunProblem", ctx: typer.Context) -> None:
    """Where an option is what is wrong, say so, as for every other option."""
    from heedful.train.problems import BadSetting, NoRun, TextProblem

    given = ctx.params
    if isinstance(problem, NoRun):
        raise typer.BadParameter(str(problem), param_hint="'--resume'") from None
    if given["resume"] is not None:
        return
    if isinstance(problem, BadSetting):
        raise _bad_option(problem, "--schedule" if given["compare"] is None else "--compare") from None
    if isinstance(problem, TextProblem) and given["text"]:
        raise typer.BadParameter(str(problem), param_hint="'--text'") from None


def _bad_option(problem: "BadSetting", schedule: str) -> typer.BadParameter:
    """The problem with a setting, told with the names of options; `schedule` is what chose the schedule."""
    told = problem.problem
    for other in problem.others:
        told = re.sub(rf"\b{other}\b", _option(other), told)
    hint = schedule if problem.name == "schedule" else _option(problem.name)
    return typer.BadParameter(told, param_hint=f"'{hint}'")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
