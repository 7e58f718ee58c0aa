"""`heedful models`: which models can be looked at."""

from heedful.cli.terminal import terminal_width, write_lines


def models() -> None:
    """List the models that can read a text, and how to install the missing ones.

    \b
    Examples:
      heedful see "The cat sat on the mat." --model tiny
      heedful see "The cat sat on the mat." --model runs/latest
    """  # noqa: D301 - typer reads \b as: keep these lines as they are
    from rich.text import Text

    from heedful.models import CATALOGUE
    from heedful.view.text import paragraph

    width = terminal_width()
    lines = []
    for entry in CATALOGUE.values():
        lines += paragraph(Text.assemble((entry.name, "bold"), "  ", entry.description), width)
        state = f"  installed: {entry.package}" if entry.installed else f"  not installed: {entry.install}"
        lines.append(Text(state, style="dim" if entry.installed else ""))
    lines += paragraph(
        Text("Others go by their folder: a run of `heedful train`, or a Hugging Face model."), width
    )
    write_lines(lines)
