"""ONNX's own backend cases for Attention and RotaryEmbedding, as the pinned onnx package generates them."""

import importlib
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import heedful
from heedful import masks

onnx_cases = pytest.importorskip("onnx.backend.test.case.node", reason="the outside suites need onnx")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # onnx's own numpy reference overflows in half precision
    collected = onnx_cases.collect_testcases("Attention")
    # A process collects one operator; the cases of a second one come from reading its module again.
    onnx_cases._TargetOpType = "RotaryEmbedding"
    importlib.reload(importlib.import_module("onnx.backend.test.case.node.rotaryembedding"))
    found = {case.name: case for case in collected if "_expanded" not in case.name}.values()
CASES = [case for case in found if case.model.graph.node[0].op_type == "Attention"]
ROTARY = [case for case in found if case.model.graph.node[0].op_type == "RotaryEmbedding"]
# A half-precision result may differ by roundings of intermediate results that the onnx reference keeps in half.
TOLERANCES = {
    torch.float32: {"rtol": 1e-3, "atol": 1e-4},
    torch.float16: {"rtol": 1e-2, "atol": 8e-3},
    torch.bfloat16: {"rtol": 1e-2, "atol": 8e-3},
}


def tensor(x: Any) -> Tensor | None:
    """A numpy array as a tensor; bfloat16, which numpy lacks, enters by its bits."""
    if x is None:
        return None
    x = np.ascontiguousarray(x)
    return (
        torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16)
        if x.dtype.name == "bfloat16"
        else torch.from_numpy(x)
    )


def attributes(node: Any) -> dict[str, Any]:
    from onnx.helper import get_attribute_value

    return {each.name: get_attribute_value(each) for each in node.attribute}


def heads(x: Tensor, num_heads: int | None) -> Tensor:
    """(batch, length, heads * size) as (batch, heads, length, size)."""
    return x if x.dim() == 4 else x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def attention(inputs: dict[str, Tensor | None], given: dict[str, Any]) -> dict[str, Tensor]:
    """ONNX's operator by way of heedful's function."""
    packed = inputs["Q"].dim() == 3
    query = heads(inputs["Q"], given.get("q_num_heads"))
    key, value = (heads(inputs[name], given.get("kv_num_heads")) for name in ("K", "V"))
    past = 0
    if inputs.get("past_key") is not None:
        past = inputs["past_key"].shape[2]
        key, value = torch.cat([inputs["past_key"], key], 2), torch.cat([inputs["past_value"], value], 2)
    L, S = query.shape[2], key.shape[2]
    start, mask, bias = past, None, None
    if inputs.get("nonpad_kv_seqlen") is not None:
        lengths = inputs["nonpad_kv_seqlen"]
        mask, start = masks.lengths(lengths), lengths - L
    left, right = given.get("left_window_size", -1), given.get("right_window_size", -1)
    if given.get("is_causal"):
        mask = masks.causal() if mask is None else mask & masks.causal()
    if left >= 0 or right >= 0:
        window = masks.window(left + 1 if left >= 0 else None, right if right >= 0 else None)
        mask = window if mask is None else mask & window
    if inputs.get("attn_mask") is not None:
        extra = inputs["attn_mask"]
        extra = extra[(None,) * (4 - extra.dim())]  # broadcast from the right, as numpy does
        short = S - extra.shape[-1]  # a mask for fewer keys hides the rest
        if extra.dtype == torch.bool:
            extra = torch.nn.functional.pad(extra, (0, short), value=False)
            extra = masks.dense(extra)
            mask = extra if mask is None else mask & extra
        else:
            bias = torch.nn.functional.pad(extra, (0, short), value=-torch.inf)
    softcap = given.get("softcap") or None
    arguments = {"query_start": start, "scale": given.get("scale"), "softcap": softcap, "attn_bias": bias}
    output, weights = heedful.scaled_dot_product_attention(query, key, value, mask, **arguments)
    mode = given.get("qk_matmul_output_mode", 0)
    scores = {
        0: lambda: raw(query, key, given.get("scale"), None, None),
        1: lambda: raw(query, key, given.get("scale"), softcap, None),
        2: lambda: raw(query, key, given.get("scale"), softcap, (mask, bias, start)),
        3: lambda: weights.full(query.dtype),
    }
    return {
        "Y": output.transpose(1, 2).flatten(2) if packed else output,
        "present_key": key,
        "present_value": value,
        "qk_matmul_output": scores[mode],
    }


def raw(query: Tensor, key: Tensor, scale: float | None, softcap: float | None, hidden: Any) -> Tensor:
    """Scores before the softmax, which heedful never builds: a wish of the operator, computed by the adapter."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query.float() @ key.float().mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if hidden is not None:
        mask, bias, start = hidden
        if bias is not None:
            scores = scores + bias.float()
        if mask is not None:
            scores = scores.masked_fill(~mask.to_dense(*scores.shape[-2:], start), -torch.inf)
    return scores.to(query.dtype)


NAMES = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_attention(case: Any) -> None:
    node = case.model.graph.node[0]
    for given, expected in case.data_sets:
        present = iter(given)
        inputs = {
            name: tensor(next(present)) if used else None
            for name, used in zip(NAMES, [*node.input, *[""] * 7], strict=False)
        }
        found = attention(inputs, attributes(node))
        wanted = iter(expected)
        for name, used in zip(
            ["Y", "present_key", "present_value", "qk_matmul_output"], node.output, strict=False
        ):
            if used:
                actual, right = found[name], tensor(next(wanted))
                actual = actual() if callable(actual) else actual
                torch.testing.assert_close(actual, right, equal_nan=True, **TOLERANCES[right.dtype])


class Cached(heedful.Rotary):
    """Rotary with the cosines and sines that a case brings along, which belong to no base."""

    def tables(self, positions, head_dim, dtype=torch.float32, lengths=None):
        return tuple(table[positions] if table.dim() == 2 else table for table in self.cached)


@pytest.mark.parametrize("case", ROTARY, ids=lambda case: case.name)
def test_rotary_embedding(case: Any) -> None:
    given = attributes(case.model.graph.node[0])
    for inputs, (expected,) in case.data_sets:
        x, cos, sin, *ids = map(tensor, inputs)
        packed = x.dim() == 3
        layout = "interleaved" if given.get("interleaved") else "half"
        rotary = Cached(layout=layout, rotary_dim=given.get("rotary_embedding_dim") or None)
        object.__setattr__(rotary, "cached", (cos, sin))
        turned = rotary.rotate(heads(x, given.get("num_heads")), ids[0] if ids else 0)
        turned = turned.transpose(1, 2).flatten(2) if packed else turned
        torch.testing.assert_close(turned, tensor(expected), **TOLERANCES[torch.float32])


def test_all_cases_are_here() -> None:
    print(f"ONNX: {len(CASES)} Attention cases, {len(ROTARY)} RotaryEmbedding cases")
    assert (len(CASES), len(ROTARY)) == (93, 8)
