"""flash-attn's reference in plain PyTorch as a second oracle: output, weights, logsumexp and gradients.

The package is installed without what it asks for, since its kernels need a GPU; the one file that holds the reference
is read by its path.
"""

import itertools
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful import LogSumExp, masks, scaled_dot_product_attention

found = find_spec("flash_attn")
if found is None:
    pytest.skip("the outside suites need flash-attn-4, installed with --no-deps", allow_module_level=True)
PATH = Path(next(iter(found.submodule_search_locations)), "cute", "testing.py")
SPEC = spec_from_file_location("flash_attn_reference", PATH)
flash = module_from_spec(SPEC)
SPEC.loader.exec_module(flash)

B, H, G, E, Ev = 2, 6, 3, 8, 5
LENGTHS = [(7, 7), (5, 9), (9, 5), (1, 6)]
PATTERNS: dict[str, dict[str, Any]] = {
    "everybody": {},
    "causal": {"causal": True},
    "window": {"window_size": (2, 1)},
    "window of one": {"window_size": (0, 0)},
    "window, causal": {"window_size": (3, None), "causal": True},
    "window to the right": {"window_size": (None, 2)},
}
EXTRAS = ["nothing", "softcap", "sinks", "bias", "key lengths", "key and query lengths"]


def call(L: int, S: int, pattern: dict[str, Any], extra: str) -> tuple[dict[str, Tensor], Any, Any]:
    """The tensors that have gradients, and two functions of them: flash-attn's, and heedful's."""
    tensors = {
        "query": torch.randn(B, H, L, E),
        "key": torch.randn(B, G, S, E),
        "value": torch.randn(B, G, S, Ev),
    }
    if extra == "sinks":
        tensors["sinks"] = torch.randn(H)
    if extra == "bias":
        tensors["bias"] = torch.randn(B, H, L, S)
    softcap = 1.5 if extra == "softcap" else None
    of_keys = torch.tensor([S, S - 2]) if "key" in extra else None
    of_queries = torch.tensor([L, max(L - 3, 1)]) if "query" in extra else None

    def theirs(query: Tensor, key: Tensor, value: Tensor, sinks=None, bias=None):
        output, weights, logsumexp = flash.attention_ref(
            *(x.transpose(1, 2) for x in (query, key, value)),
            None if of_queries is None else torch.arange(L) < of_queries[:, None],
            None if of_keys is None else torch.arange(S) < of_keys[:, None],
            attn_bias=bias,
            learnable_sink=sinks,
            softcap=softcap or 0.0,
            return_lse=True,
            **pattern,
        )
        return output.transpose(1, 2), weights, logsumexp

    def ours(query: Tensor, key: Tensor, value: Tensor, sinks=None, bias=None):
        mask = masks.from_flash_attn(**pattern)
        start = None
        if of_keys is not None:
            mask = mask & masks.lengths(of_keys)
            start = of_keys - (L if of_queries is None else of_queries)
        if of_queries is not None:
            mask = mask & (torch.arange(L) < of_queries[:, None])[:, None, :, None]
        output, weights = scaled_dot_product_attention(
            query,
            key,
            value,
            mask,
            attn_bias=bias,
            sinks=sinks,
            softcap=softcap,
            query_start=start,
            reduce=LogSumExp(),
        )
        return output, weights.full(), weights.logsumexp()

    return tensors, theirs, ours


@pytest.mark.parametrize("extra", EXTRAS)
def test_attention_ref(extra: str) -> None:
    calls = with_gradients = 0
    for (L, S), pattern in itertools.product(LENGTHS, PATTERNS):
        tensors, theirs, ours = call(L, S, PATTERNS[pattern], extra)
        given = {name: x.requires_grad_() for name, x in tensors.items()}
        expected, found = theirs(**given), ours(**given)
        # The reference gives some rows that see nothing NaN, others a mean; where a row sees something they agree.
        sees = found[1].detach().sum(-1, keepdim=True) > 0
        pairs = {
            "output": (found[0], torch.where(sees, expected[0], 0)),
            "weights": (found[1], torch.where(sees, expected[1], 0)),
            "logsumexp": (found[2], torch.where(sees[..., 0], expected[2], found[2])),
        }
        if sees.all():
            weigh = torch.randn_like(expected[0])
            grads = [torch.autograd.grad(x[0], list(given.values()), weigh) for x in (found, expected)]
            pairs |= {
                f"the gradient of {name}": pair
                for name, pair in zip(given, zip(*grads, strict=True), strict=True)
            }
            with_gradients += 1
        for name, (mine, other) in pairs.items():
            torch.testing.assert_close(
                mine, other, msg=lambda text, at=(L, S, pattern, name): f"{at}: {text}"
            )
        calls += 1
    print(f"flash-attn's reference, {extra}: {calls} calls equal, {with_gradients} of them with gradients")
    assert calls == 24
    assert with_gradients >= 5
