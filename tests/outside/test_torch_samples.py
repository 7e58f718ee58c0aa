"""torch's own samples for scaled dot-product attention (OpInfo): output and gradients are torch's."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from heedful import masks, scaled_dot_product_attention

pytest.importorskip("expecttest", reason="torch's sample inputs need expecttest")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's testing modules import deprecated parts of torch
    from torch.testing._internal.common_methods_invocations import op_db

OP = next(op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention")


def samples(dtype: torch.dtype) -> list[Any]:
    return list(OP.sample_inputs("cpu", dtype, requires_grad=True))


def heedfully(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    enable_gqa=False,
) -> Tensor:
    """torch's function by way of heedful's; leading sizes that torch would broadcast are expanded here."""
    dims = max(x.dim() for x in (query, key, value))
    query, key, value = (x[(None,) * (dims - x.dim())] for x in (query, key, value))
    heads = 0 if enable_gqa or dims < 4 else 1
    lead = torch.broadcast_shapes(*(x.shape[: max(dims - 3, 1) + heads] for x in (query, key, value)))
    query, key, value = (x.expand(*lead, *x.shape[len(lead) :]) for x in (query, key, value))
    bias = attn_mask if attn_mask is not None and attn_mask.is_floating_point() else None
    mask = masks.causal() if is_causal else None if bias is not None else attn_mask
    return scaled_dot_product_attention(
        query, key, value, mask, attn_bias=bias, dropout_p=dropout_p, query_start=0 if is_causal else None
    ).output


def test_scaled_dot_product_attention() -> None:
    """In float64, where a difference is a mistake and not a rounding."""
    dtype, compared = torch.float64, 0
    for sample in samples(dtype):
        inputs = [sample.input, *sample.args]
        ours = heedfully(*inputs, **sample.kwargs)
        if sample.kwargs.get("dropout_p", 0.0) > 0:  # whose numbers differ: shape and dtype only
            assert ours.dtype == dtype
            continue
        theirs = F.scaled_dot_product_attention(*inputs, **sample.kwargs)
        torch.testing.assert_close(ours, theirs)
        weigh = torch.randn_like(theirs)
        for found, expected in zip(
            *(torch.autograd.grad(x, inputs, weigh) for x in (ours, theirs)), strict=True
        ):
            torch.testing.assert_close(found, expected)
        compared += 1
    print(
        f"torch samples in {dtype}: {compared} of {len(samples(dtype))} compared with gradients, the rest have dropout"
    )
    assert compared >= 10
