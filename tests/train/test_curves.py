"""The small plots, compared whole."""

import io

from rich.console import Console

from heedful.train.curves import Curves


def drawn(curves, width=40, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, color_system=None)
    console.print(curves)
    file.seek(0)
    return [line.rstrip() for line in file.read().splitlines()]


def test_a_line_from_corner_to_corner():
    line = Curves({"line": [(0, 0.0), (31, 15.0)]}, height=4)
    assert drawn(line, width=21) == [
        "15 │⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⣀⠤⠒⠉",
        "   │⠀⠀⠀⠀⠀⠀⠀⠀⢀⡠⠔⠒⠉⠀⠀⠀⠀",
        "   │⠀⠀⠀⠀⣀⠤⠔⠊⠁⠀⠀⠀⠀⠀⠀⠀⠀",
        " 0 │⣀⠤⠒⠉⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀",
        "   └─────────────────",
        "    step 0         31",
    ]


def test_two_curves_in_plain_characters():
    curves = Curves({"up": [(0, 1.0), (9, 2.5)], "down": [(0, 2.5), (9, 1.0)]}, x="update", height=4)
    assert drawn(curves, width=24, encoding="ascii") == [
        "2.5 |ooooo         *****",
        "    |    oooooo*****",
        "    |    *****oooooo",
        "  1 |*****         ooooo",
        "    +-------------------",
        "     update 0          9",
        "     * up   o down",
    ]


def test_a_constant_and_nothing():
    assert drawn(Curves({"flat": [(0, 3.0), (5, 3.0)]}, height=2), width=14) == [
        "  │⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀",
        "3 │⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀",
        "  └───────────",
        "   step 0    5",
    ]
    assert drawn(Curves({})) == ["(nothing to draw yet)"]
