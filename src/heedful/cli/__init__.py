"""The command line. Each command is a file here, and imports what it needs when it runs."""

from typing import Annotated

import typer

from heedful.checking.command import check
from heedful.cli.info import info
from heedful.cli.models import models
from heedful.cli.see import see
from heedful.train.command import schedule, train

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)
app.command()(see)
app.command(short_help="List the models that can read a text.")(models)
app.command()(check)
app.command(short_help="Train a small transformer, and watch its heads form.")(train)
app.command(short_help="Show a learning-rate schedule.")(schedule)
app.command(short_help="Say what computes attention here, and why.")(info)


def _version(wanted: bool) -> None:
    if wanted:
        from heedful import __version__

        typer.echo(f"heedful {__version__}")
        raise typer.Exit


@app.callback()
def heedful(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Attention that keeps its weights: look at what the heads of a transformer look at.

    \b
    Start with:
      heedful see "The animal didn't cross the street because it was too tired."
    """  # noqa: D301 - typer reads \b as: keep these lines as they are
