"""What imports what: one direction, nothing heavy at start, each optional package in one place."""

import ast
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "heedful"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# A module may import from its own layer and from the layers below it.
LAYERS = [
    ["__main__", "cli"],
    ["view", "checking", "train", "watching", "huggingface", "models", "heads"],
    ["nn"],
    ["_attention", "_listeners"],
    ["_pytrees"],
    ["_weights", "_torch", "_unchanged", "_operand"],
    ["backends"],
    ["_call"],
    ["masks", "positions", "reductions", "edits"],
    ["_rows", "_index", "_checks", "_inputs", "_files"],
]
# Needed by parts of heedful, but never by `import heedful`.
LAZY = ["tokenizers", "safetensors", "typer", "rich", "transformers", "gguf", "matplotlib", "onnx", "keras"]
# Optional packages, each named in one file only.
OPTIONAL = ["transformers", "gguf", "matplotlib"]


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(p for p in parts if p != "__init__") or "__init__"


class DropTypeChecking(ast.NodeTransformer):
    """Leaves out what only a type checker imports."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return None
        return self.generic_visit(node)


@cache
def imported_by(path: Path) -> set[str]:
    """The full name of everything that running this file can import, inside functions too."""
    package = ["heedful", *path.relative_to(PACKAGE).parts[:-1]]
    found = set()
    for node in ast.walk(DropTypeChecking().visit(ast.parse(path.read_text()))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{origin}.{alias.name}" for alias in node.names}
    return found


def layer_of(module: str) -> int | None:
    top = module.split(".")[0]
    return next((i for i, names in enumerate(LAYERS) if top in names), None)


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_relative_imports_are_resolved() -> None:
    assert "heedful._call.Call" in imported_by(PACKAGE / "backends" / "reference.py")
    assert "heedful._rows.Rows" in imported_by(PACKAGE / "_call.py")


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_imports_go_one_way(path: Path) -> None:
    module = module_of(path)
    if module == "__init__":
        return
    own = layer_of(module)
    assert own is not None, f"{module} stands in no layer: give it a place in LAYERS"
    for name in imported_by(path):
        if not name.startswith("heedful."):
            continue
        theirs = layer_of(name.removeprefix("heedful."))
        assert theirs is None or theirs >= own, f"{module} imports {name}, which is in a layer above it"


@pytest.mark.parametrize("path", [p for p in SOURCES if "backends" in p.parts], ids=module_of)
def test_a_backend_never_imports_another(path: Path) -> None:
    own = module_of(path).split(".")
    if len(own) == 1:
        return
    others = {
        n.split(".")[2] for n in imported_by(path) if n.startswith("heedful.backends.") and n.count(".") > 1
    }
    siblings = {p.stem for p in (PACKAGE / "backends").iterdir() if not p.stem.startswith("_")}
    assert not (others & siblings) - {own[1]}


@pytest.mark.parametrize("package", OPTIONAL)
def test_an_optional_package_is_named_in_one_file(package: str) -> None:
    users = [module_of(p) for p in SOURCES if any(n.split(".")[0] == package for n in imported_by(p))]
    assert len(users) <= 1, f"{package} is imported by {users}; keep it in one of them"


def test_import_heedful_loads_no_optional_package() -> None:
    loaded = run_python("import sys, heedful; print(*sorted({m.split('.')[0] for m in sys.modules}))").split()
    assert not set(LAZY) & set(loaded)
    assert {"heedful", "torch"} <= set(loaded)


def test_attention_works_where_optional_packages_cannot_be_imported() -> None:
    out = run_python(f"""
        import sys
        for name in {LAZY!r}:
            sys.modules[name] = None
        import torch, heedful
        x = torch.randn(2, 3, 5, 4)
        output, weights = heedful.scaled_dot_product_attention(x, x, x)
        print(tuple(output.shape), tuple(weights.shape))
    """)
    assert out == "(2, 3, 5, 4) (2, 3, 5, 5)\n"


def test_import_draws_no_random_numbers_and_leaves_defaults_alone() -> None:
    out = run_python("""
        import torch
        def state():
            return (torch.initial_seed(), torch.get_rng_state().sum().item(), torch.get_num_threads(),
                    torch.get_default_dtype(), torch.is_grad_enabled())
        torch.manual_seed(3)
        before = state()
        import heedful
        print(state() == before)
    """)
    assert out == "True\n"
