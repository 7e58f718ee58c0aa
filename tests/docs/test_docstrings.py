"""Examples in docstrings run and give what they show."""

import doctest
import importlib
import pkgutil

import pytest
import torch

import heedful

MODULES = sorted(
    m.name for m in pkgutil.walk_packages(heedful.__path__, "heedful.") if not m.name.endswith("__main__")
)


def examples_in(module_name: str) -> list[doctest.DocTest]:
    module = importlib.import_module(module_name)
    given = {"torch": torch, "heedful": heedful, "masks": heedful.masks} | vars(heedful)
    found = doctest.DocTestFinder().find(module, extraglobs=given)
    return [test for test in found if test.examples]


@pytest.mark.parametrize("module_name", ["heedful", *MODULES])
def test_the_examples_in_docstrings_are_true(module_name: str) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    for test in examples_in(module_name):
        torch.manual_seed(0)
        runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)


def test_there_are_examples_to_run() -> None:
    assert any(examples_in(name) for name in MODULES)
