"""Finds a target: `FILE.py:NAME`, `package.module:NAME`, or an object that is already there."""

import difflib
import importlib
import importlib.util
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from heedful.checking.problems import CannotCheck
from heedful.checking.roles import parameters, role_of

MANY = 20  # names that are listed


def load(spec: str) -> Any:
    """Import the file or module and take the name out of it.

    Raises:
        CannotCheck: No such file, module or name, or the import itself failed.
    """
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name:
        raise CannotCheck(
            f"{spec!r} names no target. Write FILE.py:NAME or package.module:NAME, "
            "for example my_model.py:attention."
        )
    if Path(place).is_file() and not place.endswith(".py"):
        raise CannotCheck(f"{place} is not a Python file: its name doesn't end in .py.")
    module = load_file(Path(place)) if place.endswith(".py") else load_module(place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise CannotCheck(f"{place} has no name {part!r}.{suggestion(part, found)}")
        found = getattr(found, part)
    return found


def load_file(path: Path) -> Any:
    """Run a file as a module; imports beside it work."""
    if not path.is_file():
        raise CannotCheck(f"there is no file {path}.")
    sys.path.insert(0, str(path.parent.resolve()))
    name = path.stem if path.stem not in sys.modules else f"checked_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CannotCheck(f"{path} can't be imported as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    run_import(lambda: spec.loader.exec_module(module), str(path))
    return module


def load_module(name: str) -> Any:
    """Import a module by name; the current directory counts."""
    sys.path.insert(0, "")
    return run_import(lambda: importlib.import_module(name), name)


def run_import(action: Any, what: str) -> Any:
    """Import, and turn whatever goes wrong into a paragraph."""
    try:
        return action()
    except SyntaxError as error:
        text = (error.text or "").strip()
        raise CannotCheck(
            f"{error.filename or what} has a syntax error on line {error.lineno}: {error.msg}\n    {text}"
        ) from error
    except ModuleNotFoundError as error:
        raise CannotCheck(
            f"importing {what} needs the module {error.name!r}, which is not installed here. Install it, "
            "or run heedful with the Python that has it: python -m heedful check ..."
        ) from error
    except SystemExit as error:
        raise CannotCheck(
            f"importing {what} ends the program (sys.exit({error.code!r})). Put what runs at the end of the file "
            'under `if __name__ == "__main__":`.'
        ) from error
    except Exception as error:
        raise CannotCheck(
            f"importing {what} failed {where(error)}: {type(error).__name__}: {error}{gpu(error)}"
        ) from error


def where(error: BaseException) -> str:
    """The line of the user's code that raised."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    own = [f for f in frames if "heedful/checking" not in f.filename.replace("\\", "/")]
    return f"on line {own[-1].lineno} of {Path(own[-1].filename).name}" if own else ""


def gpu(error: BaseException | str) -> str:
    """A hint when an error is about a missing GPU."""
    if re.search(r"cuda|nvidia|\bmps\b|hip error|\bgpu\b", str(error), re.IGNORECASE):
        return (
            "\nIt wants a GPU, and none can be used here. Let the device follow the inputs (query.device), and the "
            "check can run on a CPU."
        )
    return ""


def suggestion(name: str, module: object) -> str:
    """Names in the module that come close, or that look like a target."""
    names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")] if hasattr(
        module, "__dict__"
    ) else []  # fmt: skip
    own = [
        n for n in names if getattr(getattr(module, n), "__module__", None) == getattr(module, "__name__", "")
    ]
    close = difflib.get_close_matches(name, own or names, n=3, cutoff=0.5)
    if close:
        return f" Did you mean {' or '.join(close)}?"
    shown = (own or names)[:MANY]
    more = len(own or names) - len(shown)
    others = f", and {more} more" if more else ""
    return f" It has: {', '.join(shown)}{others}." if shown else ""


def forward_of(target: Any) -> Any:
    """What tells the parameters of a target: itself; of a module or its class `forward`, in keras `call`."""
    method = getattr(target, "forward", target)
    silent = hasattr(target, "call") and all(p.name == "self" for p in parameters(method))
    return target.call if silent else method


def headline(target: Any, spec: str | None = None) -> str:
    """The target's name and parameters, for the first line of the report."""
    name = spec.rpartition(":")[2] if spec else getattr(target, "__name__", type(target).__name__)
    names = [p.name for p in parameters(forward_of(target)) if p.name != "self"]
    return f"{name}({', '.join(names)})"


def kind_of(target: Any) -> str:
    """What a target is, guessed from its name and its parameters."""
    name = getattr(target, "__name__", type(target).__name__).lower()
    function = forward_of(target)
    known = ("query", "key", "value", "qkv", "cache", "cosine", "frequencies", "mask", "padding", "start")
    roles = {role_of(p.name, known) for p in parameters(function)}
    if re.search(r"rotary|rope\b|rope_|_rope|rotate|freqs|cos_sin|sin_cos", name):
        return "rotary"
    if {"cosine", "frequencies"} & roles and not {"mask", "padding", "cache", "start"} & roles:
        return "rotary"
    if re.search(r"cache", name):
        return "cache"
    if {"query", "key"} <= roles or "qkv" in roles:
        return "attention"
    if re.search(r"mask", name) and not re.search(r"attention|attn", name):
        return "mask"
    if re.search(r"posit|sinus|\bpe\b|_pe\b|encoding", name) and not re.search(r"attention|attn", name):
        return "positions"
    roles = {role_of(p.name, ("length", "width")) for p in parameters(function)}
    return "positions" if {"length", "width"} <= roles else "attention"
