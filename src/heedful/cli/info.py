"""`heedful info`: what computes attention on this machine, and why."""

import json
import platform
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heedful.cli.terminal import terminal_width, write, write_lines

if TYPE_CHECKING:
    from rich.text import Text


def info(
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
) -> None:
    """Say what computes attention here: what was compiled, what is in use, and what goes to PyTorch's operators.

    \b
    Examples:
      heedful info
      HEEDFUL_NATIVE_LEVEL=x86-64-v3 heedful info    # another build of the kernel
    """  # noqa: D301 - typer reads \b as: keep these lines as they are
    found = _found()
    if as_json:
        write(json.dumps(found, indent=1) + "\n")
    else:
        write_lines(_lines(found))


def _found() -> dict[str, Any]:
    import torch

    from heedful import __version__
    from heedful.backends import ORDER, _product, native

    kernel = native.info()
    return {
        "heedful": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": kernel.threads,
        "order": list(ORDER),
        "native": {
            "in_use": kernel.level,
            "reason": kernel.reason,
            "built": list(kernel.built),
            "compiler": kernel.compiler,
            "shares_threads": kernel.shares_threads,
        },
        "panels": {
            "large_products": "oneDNN"
            if _product.suits(torch.float32, torch.device("cpu"))
            else "torch.matmul",
        },
        "left_to_panels": {} if kernel.reason else _left(),
    }


def _left() -> dict[str, str]:
    """What the kernel refuses, in its own words."""
    import torch

    from heedful._call import make_call
    from heedful.backends import native
    from heedful.edits import ablate

    query = torch.zeros(1, 1, 1, 1)
    calls = {
        "float64": {"query": query.double()},
        "edit=": {"edit": (ablate(0),)},
        "dropout_p > 0": {"dropout_p": 0.5},
    }
    usual = {"attn_bias": None, "query_start": None, "scale": None, "softcap": None, "sinks": None}
    reasons = {}
    for name, special in calls.items():
        tensor = special.pop("query", query)
        given = {"mask": None, **usual, "dropout_p": 0.0, "edit": None, **special}
        reasons[name] = "; ".join(native.refusals(make_call(tensor, tensor, tensor, **given)))
    return reasons


def _lines(found: dict[str, Any]) -> list["Text | str"]:
    from rich.text import Text

    from heedful.view.text import paragraph

    width, kernel = terminal_width(), found["native"]
    threads = f"{found['threads']} thread{'s' * (found['threads'] != 1)}"
    lines: list[Text | str] = [
        f"heedful {found['heedful']}   PyTorch {found['torch']}   Python {found['python']}   {threads}",
        "",
    ]
    if kernel["reason"]:
        lines += paragraph(Text.assemble(("native", "bold"), f"  not in use: {kernel['reason']}"), width)
    else:
        pool = "in PyTorch's threads" if kernel["shares_threads"] else "in threads of its own"
        state = f"  in use: {kernel['in_use']}, compiled by {kernel['compiler']}, {pool}"
        lines += paragraph(Text.assemble(("native", "bold"), state), width)
        others = [level for level in kernel["built"] if level != kernel["in_use"]]
        if others:
            lines += paragraph(Text(f"        also built: {', '.join(others)}", style="dim"), width)
    products = found["panels"]["large_products"]
    state = f"  takes every call, with PyTorch's operators (large products: {products})"
    lines += paragraph(Text.assemble(("panels", "bold"), state), width)
    if found["left_to_panels"]:
        lines += ["", 'backend="auto" takes native, and panels for']
        lines += [f"  {name:<15}{reason}" for name, reason in found["left_to_panels"].items()]
    return lines
