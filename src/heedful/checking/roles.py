"""What a parameter is for, read from its name."""

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

NAMES = {
    "query": "q query queries xq query_states query_layer query_heads q_heads query_input",
    "key": "k key keys xk key_states key_layer key_heads k_heads key_input",
    "value": "v value values xv value_states value_layer value_heads v_heads value_input",
    "qkv": "qkv qkv_packed packed_qkv qkvs fused_qkv qkv_states mixed_qkv",
    "kv": "kv kv_packed packed_kv key_value kv_states",
    "input": "x hidden_states inputs input src tgt hidden x_q query_input target tokens_in embeddings h_in",
    "memory": "context memory encoder_hidden_states encoder_output enc_output kv x_kv source cross_states",
    "mask": "mask attn_mask attention_mask src_mask m msk att_mask causal_mask keep keep_mask visible allowed "
    "valid block_mask blocked masked tgt_mask attend",
    "padding": "key_padding_mask padding_mask pad_mask key_mask kv_mask src_key_padding_mask key_padding "
    "key_keep is_pad padding context_mask",
    "bias": "attn_bias bias attention_bias position_bias pos_bias",
    "causal": "causal is_causal use_causal_mask causal_flag",
    "scale": "scale scaling softmax_scale sm_scale",
    "dropout": "dropout dropout_p dropout_rate attn_dropout p_dropout dropout_prob attn_pdrop drop p",
    "heads": "num_heads n_heads nhead heads n_head nheads num_attention_heads num_query_heads n_query_heads h "
    "q_num_heads head_num heads_num",
    "kv_heads": "num_kv_heads n_kv_heads kv_heads num_key_value_heads kv_num_heads n_kv_head num_groups n_kv num_kv "
    "nkv kv_h kv n_local_kv_heads num_query_groups n_query_groups",
    "grouped": "enable_gqa",
    "module": "module",
    "training": "training is_training train deterministic",
    "want_weights": "need_weights return_weights output_attentions return_attention_scores return_attn_probs "
    "return_attn return_attention return_attentions",
    "average": "average_attn_weights",
    "cache": "cache kv_cache past past_key_value past_key_values past_kv layer_past layer_cache past_keys",
    "use_cache": "use_cache",
    "start": "start start_pos offset position_offset past_length query_start pos cache_position input_pos",
    "positions": "position_ids positions position pos_ids t",
    "cosine": "cos cosine cosines freqs_cos cos_cache",
    "sine": "sin sine sines freqs_sin sin_cache",
    "frequencies": "freqs_cis freqs rope_cache rope freqs_complex",
    "length": "seq_len length max_len n_positions num_positions seqlen l t max_seq_len size sz n max_length "
    "seq_length n_pos num_pos context_length block_size n_ctx position_count maxlen",
    "width": "embed_dim d_model dim d hidden_size n_embd emb_dim model_dim d_emb embedding_dim depth d_hid "
    "hidden_dim features channels emb_size n_state query_dim d_in d_out output_dim input_dim",
    "head_dim": "head_dim dim_head d_k d_head head_size rotary_dim key_dim size_per_head",
    "base": "base theta rope_theta n rope_base max_period wavelength",
    "keys": "kv_len key_len s src_len num_keys key_length k_len seq_len_k seqlen_k seq_len_kv",
    "queries": "q_len query_len tgt_len num_queries query_length seq_len_q seqlen_q",
    "tokens": "tokens ids input_ids seq sequence token_ids",
    "pad": "pad pad_id pad_idx pad_token_id pad_token padding_idx",
    "lengths": "lengths lens seq_lens valid_lens valid_len key_lengths kv_lens key_lens",
    "dtype": "dtype",
    "device": "device",
    "config": "config cfg args conf hparams",
    "batch_first": "batch_first",
    "use_bias": "qkv_bias use_bias attention_bias proj_bias add_bias",
}  # fmt: skip
ROTATING = ("rotate_queries_or_keys", "rotate", "apply_rotary")  # methods of rotary modules
TABLE = {role: frozenset(names.split()) for role, names in NAMES.items()}


class Unbound(Exception):
    """A parameter that must be given and that nobody knows how to give."""


def plain_name(name: str) -> str:
    """`Query_` and `QUERY` are `query`; `W` stays a letter."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")


def role_of(name: str, among: Iterable[str]) -> str | None:
    """The first of these roles that the name stands for."""
    short = plain_name(name)
    return next((role for role in among if short in TABLE[role]), None)


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a callable; for built-in functions they are read from the docstring."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return documented(function)
    return [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def takes_any(function: Callable[..., Any]) -> bool:
    """Whether a callable takes keywords of any name."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.kind is p.VAR_KEYWORD for p in found)


def documented(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Parameters of a built-in, from the `name(a, b=None) -> ...` line that its docstring starts with."""
    line = re.search(r"^\s*\w+\(([^)]*)\)", inspect.getdoc(function) or "")
    if line is None:
        return [inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in ("query", "key", "value")]
    found = []
    for part in line.group(1).replace("*,", "").split(","):
        name, _, default = part.strip().partition("=")
        if re.fullmatch(r"[A-Za-z_]\w*", name.strip()):
            empty = inspect.Parameter.empty
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            found.append(inspect.Parameter(name.strip(), kind, default=default.strip() if default else empty))
    return found


def assign(
    function: Callable[..., Any], roles: Iterable[str], in_order: tuple[str, ...] = ()
) -> dict[str, str]:
    """Which parameter plays which role: role to parameter name.

    Args:
        function: What will be called.
        roles: The roles that make sense here; where a name could play two, the first wins.
        in_order: Where none of these roles was recognized, the required parameters play them in order.
    """
    roles = tuple(roles)
    found: dict[str, str] = {}
    for parameter in parameters(function):
        role = role_of(parameter.name, [r for r in roles if r not in found])
        if role:
            found[role] = parameter.name
    missing = [r for r in in_order if r not in found]
    if in_order and len(missing) == len(in_order):
        free = [p.name for p in required(function) if p.name not in found.values()]
        found.update(zip(in_order, free, strict=False))
    return found


def required(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Parameters without a default."""
    return [p for p in parameters(function) if p.default is p.empty]
