"""What to do where attention cannot be watched."""

from collections.abc import Sequence

from torch import nn

from .naming import Names, listed
from .seen import Seen


def check_kernels(model: nn.Module) -> None:
    """Raise where a model of transformers is set to a kernel that lies outside of PyTorch."""
    for name, module in model.named_modules():
        kernel = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if isinstance(kernel, str) and (
            "flash" in kernel or "flex" in kernel or "|" in kernel or "/" in kernel
        ):
            place = f"{name!r}" if name else "the model"
            raise ValueError(
                f"watch(): {place} runs attn_implementation={kernel!r}, a kernel whose queries and keys cannot be "
                "seen. Write model.set_attn_implementation('sdpa') first, or heedful.huggingface.use(model): "
                "same weights, same answer up to rounding."
            )


def not_seen(names: Names, seen: Seen) -> str:
    """Which modules were not seen, why, and what to do."""
    missed = seen.missed
    first = next(iter(missed))
    return (
        f"watch() could not see the attention of {_modules(len(missed))} of {type(names.model).__name__}: "
        f"{', '.join(listed(list(missed)))}. Of {names.kind(first)}: {missed[first]}. {what_to_do(names.model)}"
    )


def beyond(numbers: Sequence[int], seen: Seen) -> str:
    """Which layer numbers there are, where others were asked for."""
    asked = ", ".join(map(str, numbers))
    count = len(seen._order)
    there = "only 0 is there" if count == 1 else f"only 0 to {count - 1} are there"
    return (
        f"layers {asked}: {there}, as {seen._model} ran attention in {_modules(count)} in this block. "
        "Numbers follow the order of the first calls."
    )


def what_to_do(model: nn.Module) -> str:
    """How to bring a model's attention to where it can be watched."""
    settable = getattr(model, "_can_set_attn_implementation", None)
    if settable is None:
        return (
            "Let it call F.scaled_dot_product_attention or heedful.scaled_dot_product_attention instead, "
            "which both can be watched."
        )
    if settable():
        return (
            "Write heedful.huggingface.use(model) before the block: the same attention, where it can be seen."
        )
    return (
        "transformers has one implementation of it only. Pass output_attentions=True to its call for the whole "
        "matrices."
    )


def _modules(count: int) -> str:
    return "1 module" if count == 1 else f"{count} modules"
