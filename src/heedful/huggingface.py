"""The bridge to transformers: the attention implementation "heedful", and what watching needs to know of "sdpa"."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from . import masks
from ._attention import scaled_dot_product_attention
from ._weights import Weights
from .masks import Mask

NAME = "heedful"


def register() -> None:
    """Make "heedful" an attention implementation of transformers, with its mask function.

        heedful.huggingface.register()
        model = AutoModel.from_pretrained(path, attn_implementation="heedful")
        outputs = model(**inputs, output_attentions=True)
        outputs.attentions[3].entropy()        # each is a `heedful.Weights`, never built

    For a model that is loaded already, `use(model)` does this too, and checks that the model can be switched.

    Every convention of transformers is kept: scaling, dropout in training, grouped heads, causality with caches,
    sliding windows, packed positions, padding, softcap, sinks, position bias. A query that sees nothing, such as left
    padding, gets 0, where "eager" gives it the mean of all values.

    Raises:
        ImportError: transformers is not installed.

    Cost: nothing. A call costs what `heedful.scaled_dot_product_attention` does; masks are rules, not matrices, except
        where a model or a static cache needs the tensor.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


def use(model: nn.Module) -> nn.Module:
    """Switch a loaded model of transformers to heedful's attention, and make sure that it is switched.

    Args:
        model: A model of transformers.

    Returns:
        The same model.

    Raises:
        TypeError: It is not a model of transformers.
        ValueError: It has one implementation only, which its class does not let go of; or `output_attentions` is set
            in its configuration, where transformers allows it with "eager" alone.

    Cost: nothing.
    """
    if not hasattr(model, "set_attn_implementation"):
        raise TypeError(f"model must be a model of transformers, got {type(model).__name__}.")
    kind = type(model).__name__
    transformer: Any = model
    if not transformer._can_set_attn_implementation():
        raise ValueError(
            f"{kind} computes its attention itself: transformers logs a warning for any other implementation and keeps "
            "its own. Pass output_attentions=True to its call for the whole matrices."
        )
    if getattr(model.config, "output_attentions", False):
        raise ValueError(
            f"{kind} has config.output_attentions=True, which transformers allows with 'eager' only. Write "
            "model.config.output_attentions = False, and pass output_attentions=True to the calls that shall have them."
        )
    register()
    transformer.set_attn_implementation(NAME)
    for name, module in model.named_modules():
        kept = getattr(getattr(module, "config", None), "_attn_implementation", NAME)
        if kept != NAME:
            raise ValueError(
                f"{name!r} of {kind} keeps attn_implementation={kept!r}: {type(module).__name__} cannot be switched. "
                "Switch the parts that can be, one by one: use(model.language_model)."
            )
    return model


def load(source: str) -> tuple[Any, Any, list[str]]:
    """A model of transformers as its files were saved, its tokenizer, and the tensors that its files lack.

    Args:
        source: A folder, or the name of a model that was downloaded before. Nothing is downloaded here, and no code
            that comes with a model is run.

    Raises:
        ImportError: transformers is not installed.
        OSError, ValueError, ...: What transformers raises where there is no such model, or it cannot be read.

    Cost: the model in memory, in evaluation mode and in the dtype of its files.
    """
    import transformers
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        here = {"local_files_only": True, "trust_remote_code": False}
        config = transformers.AutoConfig.from_pretrained(source, **here)
        saved = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModel)
        model, report = saved.from_pretrained(source, config=config, output_loading_info=True, **here)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **here)
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
    return model.eval().requires_grad_(False), tokenizer, sorted(report["missing_keys"])


# The attention function


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    indices: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Weights]:
    """What transformers calls: query (B, H, L, E), key (B, G, S, E), value (B, G, S, Ev).

    Returns:
        output (B, L, H, Ev), and the weights, lazily: transformers hands them out under `output_attentions=True`.

    Raises:
        NotImplementedError: `indices`, keys chosen per query, which heedful does not do.
    """
    if indices is not None:
        raise NotImplementedError(
            f"{type(module).__name__} chooses keys per query (indices=), which heedful cannot honor. "
            "Load it with attn_implementation='sdpa' or 'eager'."
        )
    L, S = query.shape[2], key.shape[2]
    biases = [] if position_bias is None else [position_bias]
    start: int | None = None
    if isinstance(attention_mask, Placed):
        rule, start = attention_mask.rule, attention_mask.query_start
    elif isinstance(attention_mask, Tensor):
        given = attention_mask[..., :S]
        rule = given if given.dtype == torch.bool else None
        biases += [given] if rule is None else []
    else:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        rule, start = _unmasked(causal and L > 1, sliding_window), 0 if L > 1 else S - L
    if cu_seq_lens_q is not None and cu_seq_lens_k is not None:
        packed = masks.documents(_documents(cu_seq_lens_q, L), _documents(cu_seq_lens_k, S))
        rule = packed if rule is None else packed & rule
    output, weights = scaled_dot_product_attention(
        query,
        key,
        value,
        rule,
        attn_bias=tuple(biases),
        query_start=start,
        scale=scaling,
        softcap=softcap,
        sinks=s_aux,
        dropout_p=dropout,
    )
    return output.transpose(1, 2).contiguous(), weights


def _unmasked(causal: bool, window: int | None) -> Mask | None:
    """The rule where transformers gives no mask: it then relies on flags, as flash attention does."""
    if window is not None:
        return masks.window(window, 0 if causal else window - 1)
    return masks.causal() if causal else None


def _documents(ends: Tensor, length: int) -> Tensor:
    """Document of each token, from where documents start and end: [0, 3, 5] is [0, 0, 0, 1, 1]."""
    return torch.searchsorted(ends[1:].contiguous(), torch.arange(length, device=ends.device), right=True)


# The mask function


@dataclass(frozen=True, eq=False)
class Placed:
    """A mask as transformers hands it from the model to every layer: a rule, and where the queries stand.

    Models that treat masks as tensors find the one (B, 1, L, S) that it stands for.
    """

    rule: Mask
    query_start: int
    batch_size: int
    q_length: int
    kv_length: int

    @cached_property
    def dense(self) -> Tensor:
        """(B, 1, L, S) bool, True = may attend."""
        keep = self.rule.to_dense(self.q_length, self.kv_length, self.query_start)
        return keep.expand(self.batch_size, 1, self.q_length, self.kv_length)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.batch_size, 1, self.q_length, self.kv_length))

    def __getitem__(self, index: Any) -> Tensor:
        return self.dense[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dense, name)

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        given = tuple(x.dense if isinstance(x, Placed) else x for x in args)
        return func(*given, **(kwargs or {}))


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable | None = None,
    attention_mask: Tensor | Placed | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **others: Any,
) -> Placed | Tensor | None:
    """What transformers calls once per forward pass, to say who may look at whom.

    Returns:
        None where everybody sees everybody; a `Placed`; or a tensor (B, 1, L, S) where transformers reads it itself
        (static caches) or the model brings a mask function of its own.
    """
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    if isinstance(attention_mask, Placed):  # made by generate() already, for a cache of fixed size
        return attention_mask
    function = causal_mask_function if mask_function is None else mask_function
    if isinstance(q_offset, Tensor) or use_vmap:
        return sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,  # pyright: ignore[reportArgumentType]
            kv_offset=kv_offset,
            mask_function=function,
            attention_mask=attention_mask,
            allow_is_causal_skip=False,
            use_vmap=use_vmap,
            device=device,
        )
    rules = [
        rule
        for rule in (_rule(function, kv_offset, batch_size), _padding(attention_mask, kv_offset, kv_length))
        if rule is not None
    ]
    if not rules:
        return None
    rule = rules[0] if len(rules) == 1 else rules[0] & rules[1]
    return Placed(rule, q_offset - kv_offset, batch_size, q_length, kv_length)


def _padding(attention_mask: Tensor | None, kv_offset: int, kv_length: int) -> Mask | None:
    """Real tokens among the keys, or None if all are."""
    if attention_mask is None:
        return None
    keep = attention_mask[:, kv_offset : kv_offset + kv_length].bool()
    keep = torch.nn.functional.pad(keep, (0, kv_length - keep.shape[1]))
    if not torch.compiler.is_compiling() and bool(keep.all()):
        return None
    return masks.padding(keep)


def _rule(function: Callable, kv_offset: int, batch_size: int) -> Mask | None:
    """The rule behind a mask function of transformers; None if everybody sees everybody.

    Those of transformers itself are recognized by name, which makes them cheap; any other is asked block by block.
    """
    kind = (
        function.__qualname__.partition(".")[0] if function.__module__ == "transformers.masking_utils" else ""
    )
    inside = {} if function.__closure__ is None else _closure(function)
    if kind == "causal_mask_function":
        return masks.causal()
    if kind == "bidirectional_mask_function":
        return None
    if kind == "sliding_window_overlay":
        return masks.window(inside["sliding_window"], None)
    if kind == "sliding_window_bidirectional_overlay":
        return masks.window(inside["sliding_window"] + 1, inside["sliding_window"])
    if kind == "packed_sequence_mask_function" and kv_offset == 0:
        return masks.documents(inside["packed_sequence_mask"].contiguous())
    if kind == "and_masks":
        return _all_of(inside["mask_functions"], kv_offset, batch_size)
    return FunctionMask(function, kv_offset, batch_size)


def _all_of(functions: Sequence[Callable], kv_offset: int, batch_size: int) -> Mask | None:
    packed = any("packed_sequence_mask_function" in each.__qualname__ for each in functions)
    rules = []
    for function in functions:
        # Within one packed document, distances of positions are distances of tokens.
        if packed and "remap_positions_for_packed_sequence" in function.__qualname__:
            function = _closure(function)["mask_function"]
        rule = _rule(function, kv_offset, batch_size)
        rules += [] if rule is None else [rule]
    whole = rules[0] if rules else None
    for rule in rules[1:]:
        whole = whole & rule
    return whole


def _closure(function: Callable) -> dict[str, Any]:
    """What a function closes over, by name."""
    cells = function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)}


@dataclass(frozen=True, eq=False)
class FunctionMask(Mask):
    """A mask function of transformers, (batch, head, query, key) -> bool, asked block by block."""

    function: Callable
    kv_offset: int
    batch_size: int

    def block(self, rows, keys):
        batch = rows.batch
        if isinstance(batch, slice):
            batch = torch.arange(batch.start, min(batch.stop, self.batch_size), device=rows.device)
        batch = batch.to(rows.device)[:, None, None, None]
        query = rows.positions + self.kv_offset
        key = rows.key_positions(keys) + self.kv_offset
        keep = self.function(batch, torch.zeros_like(batch), query, key)
        return keep.expand(len(batch), 1, query.shape[-2], len(keys))


# What watching needs to know


def hand_over(thread: Any) -> None:
    """Let models that run "sdpa" say what they hand to torch, in `thread.handed`; None ends that.

    For torch, transformers repeats keys for grouped heads, and packs the query heads of a decoding step into rows.
    """
    from transformers import AttentionInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    global _original
    if thread is None:
        if _original is not None:
            AttentionInterface.register("sdpa", _original)
            _original = None
        return
    original = _original = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def sdpa(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        from .watching.torch_calls import Handed

        thread.handed = Handed(query, key, value)
        try:
            return original(module, query, key, value, *args, **kwargs)
        finally:
            thread.handed = None

    AttentionInterface.register("sdpa", sdpa)


_original: Callable | None = None
