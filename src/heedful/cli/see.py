"""`heedful see`: what every head of a real model looks at in a text."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli.terminal import columns, terminal_width, text_from, whole_number, working, write, write_lines

if TYPE_CHECKING:
    from heedful.view.picture import Picture

HINTS = [
    "Look at another head: --layer N --head N",
    "Look from a token:    --token WORD",
]


def see(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The text, in quotes. - reads it from standard input.")
    ],
    layer: Annotated[
        int | None, typer.Option(metavar="N", parser=whole_number, help="Look closely at a head of layer N.")
    ] = None,
    head: Annotated[
        int | None, typer.Option(metavar="N", parser=whole_number, help="Look closely at head N.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="Look from this token: its number, or as it is spelled."),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME|FOLDER",
            help="The model that reads the text: one that `heedful models` lists, the folder of a run of "
            "`heedful train`, or a Hugging Face model by folder or, if downloaded, by name.",
        ),
    ] = "minilm",
    set_aside_sink: Annotated[
        bool,
        typer.Option(
            "--set-aside-sink",
            help="Leave out the first token, which takes most of the weight in many models.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all the numbers, as JSON.")] = False,
    width: Annotated[
        int | None,
        typer.Option(metavar="N", parser=columns, help="Draw N columns wide, not the terminal's width."),
    ] = None,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Draw with ASCII signs only.")] = False,
) -> None:
    """See what every head of a transformer looks at in TEXT.

    A grid of layers and heads, both counted from 0, says of each head where it looks (a letter) and how widely (a
    column: the entropy of its attention weights). Then one head is shown closely. It is the one you name, or else
    the one with the most telling link: a large weight from one word to another, the farther apart the better.

    \b
    Examples:
      heedful see "The animal didn't cross the street because it was too tired."
      heedful see "The trophy did not fit in the suitcase; it was too big." --token it
      heedful see "Paris is the capital of France." --layer 5 --head 11
      heedful see "She said that she" --model tiny
      heedful see "Paris is in France. Rome is in" --model smollm2 --set-aside-sink
      heedful see - --json < letter.txt
    """  # noqa: D301 - typer reads \b as: keep these lines as they are
    picture = _picture(text_from(text), (layer, head, token), model, set_aside_sink)
    if as_json:
        from heedful.view.picture import to_json

        write(json.dumps(to_json(picture)) + "\n")
        return
    from heedful.view.terminal import draw
    from heedful.view.text import ASCII, glyphs_for

    encoding = "ascii" if ascii_only else sys.stdout.encoding
    glyphs = ASCII if ascii_only else glyphs_for(encoding)
    lines = draw(picture, width or terminal_width(), glyphs, encoding)
    if sys.stdout.isatty() and (layer, head, token) == (None, None, None):
        lines += ["", *HINTS]
    write_lines(lines)


def _picture(
    text: str, choice: tuple[int | None, int | None, str | None], model: str, set_aside_sink: bool
) -> "Picture":
    """Load the model, let it read the text, and make the picture; what can't be done is said in terms of options."""
    with working(f"{model} reads the text"):
        from heedful import models
        from heedful.models.reading import TextRefused
        from heedful.view.build import BadChoice, picture_of

        try:
            reading = models.load(model).read(text)
            return picture_of(reading.without_sink() if set_aside_sink else reading, *choice)
        except models.UnknownModel as error:
            raise typer.BadParameter(str(error), param_hint="'--model'") from None
        except TextRefused as error:
            raise typer.BadParameter(str(error), param_hint="'TEXT'") from None
        except BadChoice as error:
            raise typer.BadParameter(error.problem, param_hint=f"'--{error.name}'") from None
        except models.ModelNotInstalled as error:
            instead = "" if model == "tiny" else "\nOr look at the one that comes with heedful: --model tiny"
            typer.echo(f"{error}{instead}", err=True)
            raise typer.Exit(1) from None
        except (models.ModelFilesChanged, models.ModelUnreadable) as error:
            typer.echo(error, err=True)
            raise typer.Exit(1) from None
