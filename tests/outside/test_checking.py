"""`heedful check` on attention that other libraries wrote: nobody is accused, and the table in the docs is true."""

import importlib
import os
import warnings
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.nn import functional

from heedful.checking import Diagnosis, check

PAGE = Path(__file__).parents[2] / "docs" / "check" / "index.md"
TRANSFORMERS = "bart bert gemma2 gpt2 gpt_neox llama mistral phi3 qwen2 t5 vit whisper".split()
EMPTY = {
    "empty-row-nan": "NaN",
    "empty-row-mean": "average of all values",
    "a query that may see nothing gets 0": "0",
}


def torch_module(**options: Any) -> Diagnosis:
    return check(nn.MultiheadAttention(24, 3, batch_first=True), settings=options)


def transformers(name: str) -> Diagnosis:
    pytest.importorskip("transformers")
    return check(
        importlib.import_module(f"transformers.models.{name}.modeling_{name}").eager_attention_forward
    )


def onnx() -> Diagnosis:
    return check(pytest.importorskip("onnx.reference.ops.op_attention")._compute_attention)


def keras() -> Any:
    """Keras on top of torch."""
    os.environ["KERAS_BACKEND"] = "torch"
    return pytest.importorskip("keras")


def keras_layer(name: str) -> Diagnosis:
    inputs = [(2, 5, 32), (2, 7, 32), (2, 7, 32)]
    layers = keras().layers
    heads = {"MultiHeadAttention": (4, 8), "GroupQueryAttention": (8, 4, 2)}[name]
    layer = getattr(layers, name)(*heads)
    layer.build(*inputs)
    return check(layer)


def flash_attn() -> Diagnosis:
    found = find_spec("flash_attn")
    if found is None:
        pytest.skip("needs flash-attn-4, installed with --no-deps")
    path = Path(next(iter(found.submodule_search_locations)), "cute", "testing.py")
    spec = spec_from_file_location("flash_attn_reference", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return check(module.attention_ref)


def x_transformers(**options: Any) -> Diagnosis:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it uses what torch has deprecated
        module = pytest.importorskip("x_transformers")
    return check(module.Attention(dim=32, heads=4, dim_head=8, **options))


# Each row of the table, by its first cell.
ROWS: dict[str, Callable[[], Diagnosis]] = {
    "`F.scaled_dot_product_attention`": lambda: check(functional.scaled_dot_product_attention),
    "`nn.MultiheadAttention`, weights wanted": lambda: torch_module(need_weights=True),
    "`nn.MultiheadAttention`, no weights": lambda: torch_module(need_weights=False),
    **{f"transformers' eager function of {n}": lambda n=n: transformers(n) for n in TRANSFORMERS},
    "keras's `dot_product_attention`": lambda: check(keras().ops.dot_product_attention),
    "keras's `MultiHeadAttention`": lambda: keras_layer("MultiHeadAttention"),
    "keras's `GroupQueryAttention`": lambda: keras_layer("GroupQueryAttention"),
    "onnx's reference": onnx,
    "flash-attn's `attention_ref`": flash_attn,
    "x-transformers' `Attention`": x_transformers,
    "x-transformers' `Attention`, causal": lambda: x_transformers(causal=True),
    "x-transformers' `Attention`, grouped": lambda: x_transformers(kv_heads=2),
}


def table() -> dict[str, list[str]]:
    """The table of the page: first cell to the others."""
    part = (
        PAGE.read_text().partition("## What it says of well-known implementations")[2].partition("\n## ")[0]
    )
    rows = [line.strip("|").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return {cells[0].strip(): [c.strip() for c in cells[1:]] for cells in rows}


def told(found: Diagnosis) -> tuple[str, str]:
    """The second and the third cell."""
    names = {h.name for h in found.hazards} | set(found.conventions)
    empty = next((words for name, words in EMPTY.items() if name in names), "not asked")
    return empty, "leaks" if "masked-nan-leak" in names else "stays"


@pytest.mark.parametrize("row", ROWS)
def test_nobody_is_accused_and_the_table_is_true(row: str) -> None:
    found = ROWS[row]()
    assert (found.verdict, found.mistakes, found.properties) == ("right", (), ()), str(found)
    known = table()
    cells = known[row if row in known else "transformers' eager functions"]
    assert tuple(cells[:2]) == told(found), str(found)


def test_the_table_has_no_other_rows() -> None:
    named = {row if "eager" not in row else "transformers' eager functions" for row in ROWS}
    assert table().keys() - {"implementation"} == named


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_conventions_of_transformers(name: str) -> None:
    wanted = {"mask is added to the scores (0 and -inf)", "weights per head"}
    assert wanted <= set(transformers(name).conventions)


def test_half_split_rotary_of_transformers() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    found = check(llama.apply_rotary_pos_emb)
    assert (found.verdict, found.mistakes) == ("right", ()), str(found)
    assert "columns pair up as halves (i and i + D/2)" in found.conventions
