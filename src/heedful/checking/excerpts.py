"""The wrong code of an entry, without its decorator, docstring and annotations."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import partial
from typing import Any

from heedful.checking.catalogue.entry import Mistake


def wrong_code(entry: Mistake) -> str:
    """The functions that the first variant puts in place of the right ones."""
    found = [code for function in entry.variants[0].stages.values() if (code := excerpt(function))]
    return "\n\n\n".join(dict.fromkeys(found))


def excerpt(function: Callable[..., Any]) -> str:
    """One function; empty for a lambda, which says nothing by itself."""
    values = function.keywords if isinstance(function, partial) else {}
    function = function.func if isinstance(function, partial) else function
    if function.__name__ == "<lambda>":
        return ""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)).strip())
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        return ""
    documented = ast.get_docstring(definition) is not None
    body = definition.body[1:] if documented else definition.body
    names = [ast.arg(a.arg) for a in definition.args.args]
    defaults: list[ast.expr] = [ast.Constant(values[n.arg]) for n in names if n.arg in values]
    arguments = ast.arguments([], names, None, [], [], None, defaults)
    definition.args, definition.body = arguments, body or [ast.Return(None)]
    definition.decorator_list, definition.returns = [], None
    return ast.unparse(ast.fix_missing_locations(definition))
