"""From and to `nn.MultiheadAttention`, and the names under which others keep the same weights."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from heedful.nn.attention import MultiHeadAttention

# Each parameter of torch's module and of the post's, and those of ours that it is made of, one below the other.
# torch packs the three input projections into one matrix, unless kdim or vdim differ from embed_dim.
_MADE_OF = {
    "in_proj_weight": ("q_proj.weight", "k_proj.weight", "v_proj.weight"),
    "in_proj_bias": ("q_proj.bias", "k_proj.bias", "v_proj.bias"),
    "q_proj_weight": ("q_proj.weight",),
    "k_proj_weight": ("k_proj.weight",),
    "v_proj_weight": ("v_proj.weight",),
    "out_proj.weight": ("out_proj.weight",),
    "out_proj.bias": ("out_proj.bias",),
    "W_q.weight": ("q_proj.weight",),
    "W_k.weight": ("k_proj.weight",),
    "W_v.weight": ("v_proj.weight",),
    "W_o.weight": ("out_proj.weight",),
    "W_q.bias": ("q_proj.bias",),
    "W_k.bias": ("k_proj.bias",),
    "W_v.bias": ("v_proj.bias",),
    "W_o.bias": ("out_proj.bias",),
}


def rename(_module: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_rest: Any) -> None:
    """Give entries in the post's or torch's names the names of `MultiHeadAttention`; a hook of `load_state_dict`."""
    for theirs, ours in _MADE_OF.items():
        if prefix + theirs in state_dict:
            parts = state_dict.pop(prefix + theirs).chunk(len(ours))
            state_dict.update({prefix + name: part for name, part in zip(ours, parts, strict=True)})


def from_torch(cls: type["MultiHeadAttention"], module: nn.MultiheadAttention) -> "MultiHeadAttention":
    """See `MultiHeadAttention.from_torch`."""
    if not isinstance(module, nn.MultiheadAttention):
        raise TypeError(f"module must be an nn.MultiheadAttention, got {type(module).__name__}.")
    names = dict(module.named_parameters())
    if "bias_k" in names or "bias_v" in names:
        raise NotImplementedError(
            "module has add_bias_kv=True: a learned key and value after the others, which heedful does not have. "
            "A heedful.KVCache that holds them, split into heads, gives the same output when it is passed as cache=."
        )
    if module.add_zero_attn:
        raise NotImplementedError(
            "module has add_zero_attn=True: a key and value of zeros after the others, which heedful does not have. "
            "A MultiHeadAttention(sinks=True) with sinks of 0 gives the same output."
        )
    weight = module.out_proj.weight
    ours = cls(
        module.embed_dim,
        module.num_heads,
        kdim=module.kdim,
        vdim=module.vdim,
        bias="in_proj_bias" in names,
        dropout=module.dropout,
        device=weight.device,
        dtype=weight.dtype,
    )
    ours.load_state_dict(module.state_dict())
    for theirs, parameters in _pairs(ours, module):
        for parameter in parameters:
            parameter.requires_grad_(theirs.requires_grad)
    return ours.train(module.training)


def to_torch(ours: "MultiHeadAttention", batch_first: bool) -> nn.MultiheadAttention:
    """See `MultiHeadAttention.to_torch`."""
    missing = _not_in_torch(ours)
    if missing:
        raise NotImplementedError(
            f"nn.MultiheadAttention has no {', no '.join(missing)}; this module uses them. "
            "Only a module without them can be converted."
        )
    weight = ours.out_proj.weight
    module = nn.MultiheadAttention(
        ours.embed_dim,
        ours.num_heads,
        ours.dropout,
        "bias" in dict(ours.q_proj.named_parameters()),
        kdim=ours.kdim,
        vdim=ours.vdim,
        batch_first=batch_first,
        device=weight.device,
        dtype=weight.dtype,
    )
    with torch.no_grad():
        for theirs, parameters in _pairs(ours, module):
            theirs.copy_(torch.cat(parameters))
            theirs.requires_grad_(any(parameter.requires_grad for parameter in parameters))
    return module.train(ours.training)


def _not_in_torch(ours: "MultiHeadAttention") -> list[str]:
    uses: dict[str, Any] = {
        "position": ours.position is not None,
        "qk_norm": ours.q_norm is not None,
        "scale": ours.scale is not None,
        "softcap": ours.softcap is not None,
        "sinks": ours.sinks is not None,
        "num_kv_heads": ours.num_kv_heads != ours.num_heads,
        "head_dim": ours.num_heads * ours.head_dim != ours.embed_dim,
    }
    return [name for name, used in uses.items() if used]


def _pairs(ours: "MultiHeadAttention", module: nn.MultiheadAttention) -> list[tuple[Tensor, list[Tensor]]]:
    """Each parameter of torch's module with those of ours that it is made of."""
    mine = dict(ours.named_parameters())
    return [(theirs, [mine[part] for part in _MADE_OF[name]]) for name, theirs in module.named_parameters()]
