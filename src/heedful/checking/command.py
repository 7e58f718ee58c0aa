"""The command `heedful check`."""

import json
import os
import sys
from typing import Annotated

import typer

from heedful.checking.options import KINDS, Options


def seconds(value: str | float) -> float:
    """The number that `--timeout 5` gives."""
    try:
        number = float(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a number of seconds.") from None
    if not number >= 1:
        raise typer.BadParameter(f"{value} is too short; 1 second or more.")
    return number


def head_count(value: str) -> int:
    """The number that `--heads 8` gives."""
    if not (value.isascii() and value.isdecimal()) or int(value) < 1:
        raise typer.BadParameter(f"{value!r} is not a number of heads; it must be 1 or more.")
    return int(value)


def check(
    target: Annotated[
        str | None, typer.Argument(metavar="FILE.py:NAME | package.module:NAME", help="What to check.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Hazards count: exit with 1 when there are any.")
    ] = False,
    list_all: Annotated[bool, typer.Option("--list", help="List every mistake that is known.")] = False,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="MISTAKE", help="Teach one mistake, with a picture.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help=f"What the target is: {', '.join(KINDS)}. Guessed otherwise.")
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            "--layout",
            help="Axes of its tensors: bhld, blhd, bld, ld, ble (e = heads * size); of query, key and value in one "
            "tensor: bl3hd, 3bhld, ..., or bl-3hd with all after the dash in one axis. Tried otherwise.",
        ),
    ] = None,
    heads: Annotated[
        int | None,
        typer.Option("--heads", metavar="NUMBER", parser=head_count, help="Number of heads of a module."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A value for another parameter.")
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", parser=seconds, help="How long before it is given up, 1 or more."
        ),
    ] = 60.0,
) -> None:
    """Say what is wrong with an attention.

    Runs a function, a module, a positional encoding, a rotary function, a mask builder or a block with a cache on
    inputs designed so that every classic mistake shows, and names the mistake with evidence and remedy.

    heedful check my_model.py:attention

    heedful check --explain softmax-missing

    Exit status: 0 right, 1 wrong, 2 could not tell.
    """
    from heedful.checking import teaching

    if list_all:
        teaching.show_list(as_json)
        return
    if explain is not None:
        raise typer.Exit(teaching.show_mistake(explain))
    if target is None:
        raise typer.BadParameter("give FILE.py:NAME, or --list, or --explain MISTAKE", param_hint="TARGET")
    try:
        options = Options(kind, layout, heads, settings_from(settings or []))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    raise typer.Exit(run(target, options, timeout, as_json, strict))


def run(target: str, options: Options, timeout: float, as_json: bool, strict: bool) -> int:
    """Check, show, and give the exit status."""
    from rich.console import Console

    from heedful.checking.isolation import check_apart
    from heedful.checking.report import as_text

    errors = Console(stderr=True)
    if errors.is_terminal and not as_json:
        with errors.status("starting") as status:
            found = check_apart(target, options, timeout, lambda words: status.update(words))
    else:
        found = check_apart(target, options, timeout)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    elif sys.stdout.isatty():
        Console().print(found)
    else:
        print(as_text(found, int(width) if (width := os.environ.get("COLUMNS", "")).isdecimal() else None))
    return found.exit_status(strict)


def settings_from(pairs: list[str]) -> dict[str, object]:
    """`["p=0.1", "mode=fast"]` as a dictionary; values are Python literals where they can be."""
    import ast

    found: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--set")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found
