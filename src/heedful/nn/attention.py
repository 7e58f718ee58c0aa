"""Multi-head attention as a module: projections around `scaled_dot_product_attention`."""

from typing import Any, Never

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heedful import masks
from heedful._attention import Attention, scaled_dot_product_attention
from heedful._checks import unknown_arguments
from heedful.nn import convert
from heedful.nn.cache import KVCache, unchanged_on_error
from heedful.nn.inputs import check_inputs, check_settings, fit_mask
from heedful.positions import position_ids


class HeadNorm(nn.RMSNorm):
    """RMSNorm in the dtype of its input: under autocast that is another than its weight's, which torch warns of."""

    def forward(self, x: Tensor) -> Tensor:
        """Each vector of the last dimension divided by the root of its mean square, times the weight."""
        return nn.functional.rms_norm(x, tuple(self.normalized_shape), self.weight.to(x.dtype), self.eps)


class MultiHeadAttention(nn.Module):
    """Attention in several heads, each with its own view of the input, always batch first.

    Queries, keys and values are projected, split into heads, optionally normalized (`qk_norm`) and turned (`position`),
    attended to with `heedful.scaled_dot_product_attention`, joined, and projected once more.

    Parameters are `q_proj`, `k_proj`, `v_proj` and `out_proj`, four `nn.Linear`; `load_state_dict` also takes the names
    of the post (`W_q`, `W_k`, `W_v`, `W_o`) and those of `nn.MultiheadAttention`. Weights start with a uniform Xavier
    distribution, each matrix with its own bound, and biases with zero.

    Args:
        embed_dim: Size of the queries' and the output's vectors.
        num_heads: Number of query heads.
        num_kv_heads: Number of key and value heads, of which `num_heads` is a multiple: neighboring query heads share
            one. None: `num_heads`.
        head_dim: Size of each head. None: `embed_dim / num_heads`.
        kdim: Size of the keys' vectors. None: `embed_dim`.
        vdim: Size of the values' vectors. None: `embed_dim`.
        bias: Whether the four projections add a bias.
        dropout: Share of the weights dropped in training mode, before they meet the values. The weights returned are
            those before dropout.
        position: Where tokens stand: an object of `heedful.positions`, or any with one or more of `embed` (added to all
            three inputs), `rotate` (turns queries and keys) and `bias` (added to the scores).
        qk_norm: Whether queries and keys go through an RMSNorm over each head, before they are turned.
        scale: Factor on the dot products. None: `head_dim ** -0.5`.
        softcap: Scores become `softcap * tanh(scores / softcap)`. None: they stay.
        sinks: Whether each head learns the logit of a key without a value; its weights then sum to less than one.
        device: Where the parameters are made.
        dtype: Their floating point type.
        unknown: Nothing else is taken; an argument of torch's gets an error that says what to write.

    Raises:
        TypeError, ValueError: An argument is not as above; the message says which and what to do.

    Cost:
        As `scaled_dot_product_attention`: memory grows with the number of tokens, not with its square.

    Source: Vaswani and others, Attention Is All You Need, 2017, section 3.2.2.

    Example:
        >>> mha = MultiHeadAttention(embed_dim=512, num_heads=8)
        >>> x = torch.randn(2, 10, 512)
        >>> output, weights = mha(x, mask=heedful.masks.causal())
        >>> output.shape, weights.shape
        (torch.Size([2, 10, 512]), torch.Size([2, 8, 10, 10]))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        position: Any = None,
        qk_norm: bool = False,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **unknown: Never,
    ) -> None:
        super().__init__()
        if unknown:
            raise TypeError(f"MultiHeadAttention() has no {unknown_arguments(unknown, MultiHeadAttention)}")
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_settings(embed_dim, num_heads, num_kv_heads, head_dim, dropout, position, softcap)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = embed_dim // num_heads if head_dim is None else head_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.dropout = dropout
        self.position = position
        self.scale = scale
        self.softcap = softcap

        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.q_proj = nn.Linear(embed_dim, num_heads * self.head_dim, bias, **made)
        self.k_proj = nn.Linear(self.kdim, num_kv_heads * self.head_dim, bias, **made)
        self.v_proj = nn.Linear(self.vdim, num_kv_heads * self.head_dim, bias, **made)
        self.out_proj = nn.Linear(num_heads * self.head_dim, embed_dim, bias, **made)
        self.q_norm = HeadNorm(self.head_dim, eps=1e-6, **made) if qk_norm else None
        self.k_norm = HeadNorm(self.head_dim, eps=1e-6, **made) if qk_norm else None
        self.sinks: nn.Parameter | None = nn.Parameter(torch.empty(num_heads, **made)) if sinks else None
        self.register_load_state_dict_pre_hook(convert.rename)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the projections anew; norms become ones, sinks zeros. A learned position is left as it is."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            for name, parameter in projection.named_parameters():
                nn.init.zeros_(parameter) if name == "bias" else nn.init.xavier_uniform_(parameter)
        for norm in (self.q_norm, self.k_norm):
            if norm is not None:
                norm.reset_parameters()
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)

    def forward(
        self,
        query: Float[Tensor, "batch L embed"],
        key: Float[Tensor, "batch S kdim"] | None = None,
        value: Float[Tensor, "batch S vdim"] | None = None,
        mask: masks.Mask | Tensor | None = None,
        *,
        attn_bias: Any = None,
        query_start: int | Int[Tensor, " batch"] | None = None,
        cache: KVCache | None = None,
        reduce: Any = (),
        edit: Any = None,
        **unknown: Never,
    ) -> Attention:
        """Attend from `query` to `key`, and return what was found there in `value`.

        Args:
            query: Who looks.
            key: What is looked at. None: `query`, for self-attention.
            value: What is returned. None: `key`.
            mask: Who may look at whom: a mask from `heedful.masks`, or a bool or integer 0/1 tensor, True = may attend:
                (L, S), (batch, S) for keys that are real tokens, (batch, L, S), or (batch, heads, L, S) with sizes of 1
                where it repeats. With a cache, S counts the tokens of the cache too.
            attn_bias: Added to the scores, as in `scaled_dot_product_attention`.
            query_start: Position of the first query, one for all or one per batch item. None: the last query stands at
                the last key.
            cache: Keys and values of the tokens before these. The new ones are added to it, and all are looked at. A
                cache does not hide later tokens: give `masks.causal()` for that.
            reduce: Questions to answer in the same pass; `weights` remembers the answers.
            edit: A function panel -> weights, or several.
            unknown: Nothing else is taken; an argument of torch's gets an error that says what to write.

        Returns:
            `Attention(output, weights)`: output (batch, L, embed_dim); weights, of shape (batch, num_heads, L, S), are
            not built until they are asked.

        Raises:
            TypeError, ValueError: An argument has the wrong type, dtype, shape or value. A cache is then as it was.

        Cost:
            As `scaled_dot_product_attention`, and four matrix products.
        """
        if unknown:
            raise TypeError(f"MultiHeadAttention has no {unknown_arguments(unknown, self.forward)}")
        key = query if key is None else key
        value = key if value is None else value
        check_inputs(self, query, key, value, cache)
        key_start = 0 if cache is None else cache.length
        if query_start is None:
            query_start = key_start if query is key else key_start + key.shape[1] - query.shape[1]
        with unchanged_on_error(cache):
            query, key, value = self._embed(query, key, value, query_start, key_start)
            query = _heads(self.q_proj(query), self.num_heads, self.q_norm)
            key = _heads(self.k_proj(key), self.num_kv_heads, self.k_norm)
            value = _heads(self.v_proj(value), self.num_kv_heads)
            query, key, value = self._rotate_and_store(query, key, value, query_start, key_start, cache)
            output, weights = scaled_dot_product_attention(
                query,
                key,
                value,
                fit_mask(mask, query, key, cache),
                attn_bias=self._biases(attn_bias),
                query_start=query_start if cache is None else query_start - cache.start,
                scale=self.scale,
                softcap=self.softcap,
                sinks=self.sinks,
                dropout_p=self.dropout if self.training else 0.0,
                reduce=reduce,
                edit=edit,
            )
        return Attention(self.out_proj(output.transpose(1, 2).flatten(2)), weights)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> "MultiHeadAttention":
        """A module that computes what `nn.MultiheadAttention` does, with a copy of its weights.

        It is batch first whatever the other was, its masks say who may look (True = may attend), and its weights are
        per head and those before dropout.

        Args:
            module: With any `kdim`, `vdim`, `bias`, `dropout`, device and dtype.

        Returns:
            A new module in the same mode; parameters that were frozen are frozen.

        Raises:
            TypeError: `module` is not an `nn.MultiheadAttention`.
            NotImplementedError: It has `add_bias_kv` or `add_zero_attn`.

        Cost:
            A copy of the weights.
        """
        return convert.from_torch(cls, module)

    def to_torch(self, *, batch_first: bool = True) -> nn.MultiheadAttention:
        """An `nn.MultiheadAttention` that computes what this module does, with a copy of its weights.

        Args:
            batch_first: Whether it takes (batch, length, embed_dim).

        Returns:
            A new module in the same mode. `from_torch` gives the same weights back.

        Raises:
            NotImplementedError: This module uses what `nn.MultiheadAttention` does not have.

        Cost:
            A copy of the weights.
        """
        return convert.to_torch(self, batch_first)

    def extra_repr(self) -> str:
        """What `repr` shows besides the parts."""
        shown = {"dropout": 0.0, "scale": None, "softcap": None}
        options = [
            f"{name}={getattr(self, name)}" for name, usual in shown.items() if getattr(self, name) != usual
        ]
        if not isinstance(self.position, nn.Module | None):
            options.append(f"position={self.position}")
        if self.sinks is not None:
            options.append("sinks=True")
        sizes = [f"embed_dim={self.embed_dim}", f"num_heads={self.num_heads}"]
        if self.num_kv_heads != self.num_heads:
            sizes.append(f"num_kv_heads={self.num_kv_heads}")
        return ", ".join([*sizes, f"head_dim={self.head_dim}", *options])

    def _embed(
        self, query: Tensor, key: Tensor, value: Tensor, query_start: int | Tensor, key_start: int | Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The inputs with their positions added, each tensor once."""
        if not self._places("embed"):
            return query, key, value
        placed = self.position.embed(key, key_start)
        same = query is key and query_start is key_start
        return (
            placed if same else self.position.embed(query, query_start),
            placed,
            placed if value is key else self.position.embed(value, key_start),
        )

    def _rotate_and_store(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_start: int | Tensor,
        key_start: int | Tensor,
        cache: KVCache | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys turned by their positions, after all keys and values that the cache holds.

        Keys are stored turned, except where angles depend on the length of the whole sequence.
        """
        needs_length = getattr(self.position, "needs_length", False)
        length = (key_start + key.shape[2],) if needs_length else ()

        def rotated(x: Tensor, start: int | Tensor) -> Tensor:
            return self.position.rotate(x, position_ids(start, x.shape[2], x.device), *length)

        if not self._places("rotate"):
            return query, *_stored(key, value, cache)
        query = rotated(query, query_start)
        if not needs_length:
            return query, *_stored(rotated(key, key_start), value, cache)
        key, value = _stored(key, value, cache)
        return query, rotated(key, 0 if cache is None else cache.start), value

    def _biases(self, attn_bias: Any) -> Any:
        if not self._places("bias"):
            return attn_bias
        given = (
            () if attn_bias is None else attn_bias if isinstance(attn_bias, tuple | list) else (attn_bias,)
        )
        return (*given, self.position)

    def _places(self, method: str) -> bool:
        """Whether the position has this method."""
        return callable(getattr(self.position, method, None))


def _heads(x: Tensor, num_heads: int, norm: nn.Module | None = None) -> Tensor:
    """(batch, length, heads * head_dim) as (batch, heads, length, head_dim), each head normalized."""
    x = x.unflatten(2, (num_heads, -1)).transpose(1, 2)
    return x if norm is None else norm(x)


def _stored(key: Tensor, value: Tensor, cache: KVCache | None) -> tuple[Tensor, Tensor]:
    """All keys and values that the cache holds, these last."""
    return (key, value) if cache is None else cache.update(key, value)
