"""The options of `heedful train`, one line of help each."""

from pathlib import Path
from typing import Annotated

import typer


def number(value: str | float) -> float:
    """The number that an option such as `--lr 0.001` gives, or has by default."""
    try:
        return float(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a number.") from None


def integer(value: str | int) -> int:
    """The number that an option such as `--steps 500` gives, or has by default."""
    try:
        return int(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a whole number.") from None


def count(value: str | int) -> int:
    """The number that an option such as `--seeds 3` gives, or has by default."""
    if integer(value) < 1:
        raise typer.BadParameter(f"it must be at least 1, got {value}.")
    return integer(value)


# Text
Text = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="UTF-8 text; may be repeated. Default: Pride and Prejudice, whole."),
]
Tokens = Annotated[str, typer.Option(help="What a token is: bytes or characters.")]
Context = Annotated[int, typer.Option(parser=integer, help="Tokens in a window.")]
Echo = Annotated[
    float,
    typer.Option(
        parser=number,
        help="Share of windows that repeat themselves, which teaches to copy; halves over the run.",
    ),
]

# Model
NumLayers = Annotated[int, typer.Option(parser=integer, help="Blocks of attention and feed-forward.")]
NumHeads = Annotated[int, typer.Option(parser=integer, help="Query heads in each block.")]
NumKvHeads = Annotated[
    int | None, typer.Option(parser=integer, help="Key and value heads. Default: as many as query heads.")
]
EmbedDim = Annotated[int, typer.Option(parser=integer, help="Width of the model.")]
Position = Annotated[str, typer.Option(help="rotary, alibi, sinusoidal, learned or none.")]
QkNorm = Annotated[bool, typer.Option("--qk-norm", help="Normalize queries and keys: scores stay small.")]
Dropout = Annotated[
    float, typer.Option(parser=number, help="Share of attention weights and feed-forward outputs dropped.")
]

# Training
Steps = Annotated[int, typer.Option(parser=integer, help="Updates.")]
Batch = Annotated[int, typer.Option(parser=integer, help="Windows in a batch.")]
Accumulate = Annotated[
    int, typer.Option(parser=integer, help="Batches whose gradients are added up for one update.")
]
ScheduleName = Annotated[
    str, typer.Option(metavar="NAME", help="Learning-rate schedule: `heedful schedule` lists them.")
]
Lr = Annotated[
    float | None,
    typer.Option(
        parser=number, metavar="RATE", help="Rate at the peak. Default: 0.003, but noam sets its own."
    ),
]
Warmup = Annotated[
    int | None,
    typer.Option(
        parser=integer,
        help="Updates until the peak. Default: 100, or a quarter of the steps where that is fewer.",
    ),
]
Floor = Annotated[float, typer.Option(parser=number, help="Rate at the end, as a share of the peak.")]
WeightDecay = Annotated[float, typer.Option(parser=number, help="Of matrices.")]
Clip = Annotated[float, typer.Option(parser=number, help="Largest norm of the gradient.")]
Precision = Annotated[str, typer.Option(help="auto (bfloat16 where the CPU has it), float32 or bfloat16.")]
Seed = Annotated[int, typer.Option(parser=integer, help="The same seed gives the same run.")]
EvalEvery = Annotated[
    int, typer.Option(parser=integer, help="Updates between evaluations; each saves a checkpoint.")
]
Patience = Annotated[
    int,
    typer.Option(parser=integer, help="Evaluations without a better loss before the run stops; 0: never."),
]

# Run
Resume = Annotated[
    Path | None,
    typer.Option(metavar="RUN", help="Continue a run with its own settings, such as runs/latest."),
]
Compare = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="Train once per schedule and seed: constant,cosine,noam,wsd"),
]
Seeds = Annotated[int, typer.Option(parser=count, help="Number of seeds for --compare.")]
FindLr = Annotated[bool, typer.Option("--find-lr", help="Look for a good peak rate instead of training.")]
Runs = Annotated[Path, typer.Option(metavar="FOLDER", help="Where the folders of runs go.")]
Threads = Annotated[
    int | None,
    typer.Option(parser=count, help="Cores to use. Default: all. Fewer are faster where others compute too."),
]
