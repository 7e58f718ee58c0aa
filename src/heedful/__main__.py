"""`python -m heedful` is the same as `heedful`."""

from heedful.cli import app

app(prog_name="heedful")
