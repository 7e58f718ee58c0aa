"""What torch's attention functions were given, as arguments of heedful's own."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import masks
from .._attention import _as_autocast
from .._call import Call, make_call


class Arguments(NamedTuple):
    """Arguments of `heedful.scaled_dot_product_attention`."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: masks.Mask | Tensor | None = None
    attn_bias: Any = None
    query_start: int | None = None
    scale: float | None = None
    dropout_p: float = 0.0

    def call(self) -> Call:
        """The call that has these weights; dropout comes after them, and no random number is drawn."""
        query, key, value = _as_autocast(self.query, self.key, self.value)
        return make_call(
            query, key, value, self.mask, self.attn_bias, self.query_start, self.scale, None, None, 0.0, None
        )

    @property
    def leading(self) -> tuple[torch.Size, torch.Size]:
        """Batch sizes and head size of the weights."""
        shape = self.query.shape
        return (shape[:-2], torch.Size()) if len(shape) == 3 else (shape[:-3], shape[-3:-2])


def of_function(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Arguments:
    """The arguments of `F.scaled_dot_product_attention`, which broadcasts and aligns causality at the start."""
    if query.is_nested or key.is_nested:
        raise NotImplementedError("it was given nested tensors, whose rows differ in length")
    rank = max(3, query.dim(), key.dim(), value.dim())
    query, key, value = (x[(None,) * (rank - x.dim())] for x in (query, key, value))
    if attn_mask is not None:
        attn_mask = attn_mask[(None,) * (rank - attn_mask.dim())]
    ends = -3 if enable_gqa and rank > 3 else -2
    given = [x.shape[:ends] for x in (query, key, value)]
    leading = torch.broadcast_shapes(*given, *([] if attn_mask is None else [attn_mask.shape[:ends]]))
    query, key, value = (x.expand(*leading, *x.shape[ends:]) for x in (query, key, value))
    if attn_mask is not None and rank > 4:
        attn_mask = attn_mask.expand(*query.shape[:-3], *attn_mask.shape[-3:])

    mask = bias = None
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        mask = attn_mask
    elif attn_mask is not None:
        bias = attn_mask
    if is_causal:
        whole = (
            None
            if mask is None
            else mask.flatten(0, -4)
            if rank > 4
            else mask[:, None]
            if rank == 3
            else mask
        )
        mask = masks.causal() if whole is None else masks.causal() & masks.dense(whole)
    return Arguments(query, key, value, mask, bias, 0 if is_causal else None, scale, dropout_p)


def of_fused_operator(given: dict[str, Any]) -> Arguments:
    """The arguments of one of torch's fused operators, or of the function as inference mode hands it down."""
    attn_mask = given.get("attn_mask", given.get("attn_bias"))
    grouped = given["query"].dim() > 3 and given["query"].shape[-3] != given["key"].shape[-3]
    return of_function(
        given["query"],
        given["key"],
        given["value"],
        attn_mask,
        is_causal=given.get("is_causal", False),
        scale=given.get("scale"),
        enable_gqa=given.get("enable_gqa", grouped),
    )


def of_fast_attention(given: dict[str, Any]) -> Arguments:
    """The arguments of `torch._native_multi_head_attention`, the fast path of `nn.MultiheadAttention`."""
    return _projected(given["query"], given["num_head"], given)


def of_fast_layer(given: dict[str, Any]) -> Arguments:
    """The arguments of `torch._transformer_encoder_layer_fwd`, the fast path of `nn.TransformerEncoderLayer`."""
    x = given["src"]
    if given["norm_first"]:
        norm = given["norm_weight_1"], given["norm_bias_1"], given["eps"]
        x = torch.nn.functional.layer_norm(x, x.shape[-1:], *norm)
    return _projected(x, given["num_heads"], given)


def _projected(x: Tensor, num_heads: int, given: dict[str, Any]) -> Arguments:
    """Queries, keys and values of a fast path, projected once more: it does not give out its own."""
    mask = _fast_mask(given.get("mask"), given.get("mask_type"))
    if x.is_nested:
        lengths = x._nested_tensor_size()[:, 0]
        x = torch.nested.to_padded_tensor(x, 0.0)
        mask = masks.lengths(lengths.to(x.device))
    projected = torch.nn.functional.linear(x, given["qkv_weight"], given["qkv_bias"])
    query, key, value = projected.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    return Arguments(query, key, value, mask)


def _fast_mask(blocked: Tensor | None, kind: int | None) -> masks.Mask | Tensor | None:
    """A fast path's mask, whose nonzero entries are blocked: (L, L), (B, L) or (B, H, L, L) by its kind."""
    if blocked is None:
        return None
    keep = ~blocked.to(torch.bool)
    return masks.padding(keep) if kind == 1 else keep


_FUSED: tuple[str, ...] = (
    "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)


def operators() -> dict[Any, Callable[[dict[str, Any]], Arguments]]:
    """Every operator of torch that is attention, with the function that reads its arguments."""
    readers: dict[str, Callable[[dict[str, Any]], Arguments]] = dict.fromkeys(_FUSED, of_fused_operator)
    readers["_native_multi_head_attention"] = of_fast_attention
    readers["_transformer_encoder_layer_fwd"] = of_fast_layer
    packets = {name: getattr(torch.ops.aten, name, None) for name in readers}
    return {packet.default: readers[name] for name, packet in packets.items() if packet is not None}
