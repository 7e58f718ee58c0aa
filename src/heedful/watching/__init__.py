"""Watch any model: its own kernels run, and what is needed to answer questions about their weights is kept."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from .._call import check_reductions
from .._listeners import listening
from ..reductions import Reduction
from .advice import beyond, check_kernels, not_seen
from .answers import Answers
from .editing import edit
from .naming import Chosen, Names, as_patterns
from .operators import OperatorMode
from .saving import load
from .seen import Calls, NotSeen, Seen
from .torch_calls import told
from .watcher import Watcher

__all__ = ["Answers", "AttentionNotSeen", "Calls", "NotSeen", "Seen", "edit", "load", "watch"]


class AttentionNotSeen(UserWarning):
    """Some attention that was to be watched was not seen; the message names it and says what to do."""


@contextmanager
def watch(
    model: nn.Module, *reductions: Reduction, layers: Chosen | Sequence[Chosen] | None = None
) -> Iterator[Seen]:
    """Watch the attention of a model while it runs as it is: same kernels, same output, to the bit.

        with heedful.watch(model) as seen:
            model(**inputs)
        seen.layers[3].entropy()                       # (batch, heads, queries)
        seen["model.layers.5.self_attn"][0, 7, -1]     # one row, exact

    Watched are `F.scaled_dot_product_attention`, `nn.MultiheadAttention`, the fast paths of `nn.TransformerEncoder`
    and heedful's own function, wherever the model calls them in this thread. Models of transformers run as loaded,
    with attn_implementation "sdpa" or "heedful". Modules with a softmax of their own are named in `seen.missed`.

    Args:
        model: Any PyTorch model. A compiled one runs uncompiled inside the block.
        reductions: Questions to answer at once, such as `heedful.Entropy()`; then only the answers are kept. Without,
            queries and keys are kept, and anything can be asked later.
        layers: Which attention modules: names or patterns ("*.5.*", "decoder"), or numbers in the order of their
            first call; one or several. None: all.

    Returns:
        A context manager that gives a `Seen`, a mapping from module names to their calls.

    Raises:
        TypeError, ValueError: An argument is not as above, or the model runs a kernel from outside of PyTorch.
        ValueError: The block is over and no layer has a number of `layers`; a warning where only some are missing.
        RuntimeError: The block is over and all of the model's attention went another way; the message says which.

    Cost:
        Without reductions: time to look up names, memory of the queries, keys and values of each call (a cache that
        grows is kept once). With them: one more pass over the weights in O(N) memory; none for heedful's own function,
        which answers in the same pass.

    Source: pytorch#98505, transformers#38750, #40752: weights wanted from fused kernels.
    """
    names = Names(model)
    wanted = None if layers is None else as_patterns(layers)
    if wanted == ():
        raise ValueError("layers names no attention module. None watches all of them.")
    if wanted is not None:
        names.check("layers", wanted)
    check_kernels(names.model)
    seen = Seen(type(names.model).__name__)
    watcher = Watcher(names, check_reductions(reductions), wanted, seen)
    with told(), listening(watcher), OperatorMode(watcher.heard, watcher.running):
        yield seen
    if seen.missed and not seen:
        raise RuntimeError(not_seen(names, seen))
    if seen.missed:
        warnings.warn(not_seen(names, seen), AttentionNotSeen, stacklevel=3)
    absent = seen._absent(wanted or ())
    if absent and not seen:
        raise ValueError(beyond(absent, seen))
    if absent:
        warnings.warn(beyond(absent, seen), AttentionNotSeen, stacklevel=3)
