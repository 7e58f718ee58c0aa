"""Twenty-two architectures of transformers: watched as loaded, and with heedful's attention.

The truth is the model in float64 with a textbook attention. (transformers' own "eager" takes its softmax in float32
and gives NaN to queries that see nothing there.) What is tested may err twice as much as "eager" does in the same
dtype, plus one rounding.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny_models
from heedful import huggingface
from heedful.watching import Seen, watch
from tiny_models import MODELS, attentions, inputs, logits, make

pytest.importorskip("transformers")

# transformers' "sdpa" refuses their softcap and sinks.
EAGER_ONLY = ("gemma2", "gpt_oss")


def assert_close(found: Tensor, same_dtype: Tensor, truth: Tensor, what: str) -> None:
    error, allowed = (found.double() - truth).abs().max(), (same_dtype.double() - truth).abs().max()
    rounding = torch.finfo(same_dtype.dtype).eps * truth.abs().max()
    assert error <= 2 * (allowed + rounding), f"{what}: off by {error:.1e}, eager by {allowed:.1e}"


def real_rows(x: Tensor, given: dict[str, Tensor], dim: int) -> Tensor:
    """The part of a tensor that belongs to queries which are no padding."""
    keep = given.get("attention_mask")
    if keep is None or x.shape[dim] != keep.shape[1] or "decoder_input_ids" in given:
        return x
    return x.transpose(1, dim)[keep.bool()]


def weights_of(seen: Seen) -> list[Tensor]:
    """In the order in which they ran: a module's calls in turn where one module stands for all layers."""
    return [weights.full() for calls in seen.values() for weights in calls]


def textbook(module, query, key, value, mask, scaling=None, is_causal=None, position_bias=None, **kwargs):
    """Attention with every convention of transformers, dense."""
    H, L, S = query.shape[1], query.shape[2], key.shape[2]
    key, value = (x.repeat_interleave(H // x.shape[1], 1) for x in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if kwargs.get("softcap") is not None:
        scores = kwargs["softcap"] * torch.tanh(scores / kwargs["softcap"])
    if position_bias is not None:
        scores = scores + position_bias
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if mask is None and causal and L > 1:
        mask = torch.ones(L, S, dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if kwargs.get("s_aux") is not None:
        scores = torch.cat([scores, kwargs["s_aux"].view(1, H, 1, 1).expand(len(query), H, L, 1)], -1)
    weights = torch.softmax(scores, -1).nan_to_num(0)[..., :S]
    return (weights @ value).transpose(1, 2).contiguous(), weights


@torch.no_grad()
def run(name: str, given: dict[str, Tensor], dtype: torch.dtype) -> Any:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register("textbook", textbook)
    AttentionMaskInterface.register("textbook", sdpa_mask)
    cast = {key: x.to(dtype) if x.is_floating_point() else x for key, x in given.items()}
    model = make(name, dtype, "eager")
    if dtype == torch.float64:
        model.set_attn_implementation("textbook")
    return model(**cast, output_attentions=True)


def check(name: str, padding: str | None, dtype: torch.dtype) -> None:
    given = inputs(name, padding)
    truth, eager = (run(name, given, each) for each in (torch.float64, dtype))
    cast = {key: x.to(dtype) if x.is_floating_point() else x for key, x in given.items()}

    def compare(output: Tensor, weights: Sequence[Tensor], what: str) -> None:
        exact, same = (real_rows(logits(outputs), given, 1) for outputs in (truth, eager))
        assert_close(real_rows(output, given, 1), same, exact, f"{what}, output")
        triples = zip(weights, attentions(eager), attentions(truth), strict=True)
        for i, triple in enumerate(triples):
            assert len({x.shape for x in triple}) == 1, f"{what}, layer {i}"
            assert_close(*(real_rows(x, given, 2) for x in triple), f"{what}, weights of layer {i}")

    with torch.no_grad():
        if name not in EAGER_ONLY:
            model = make(name, dtype, "sdpa")
            plain = model(**cast)
            with watch(model) as seen:
                watched = model(**cast)
            assert torch.equal(logits(plain), logits(watched))
            compare(logits(watched), weights_of(seen), "sdpa, watched")
        model = huggingface.use(make(name, dtype, "eager"))
        plain = model(**cast, output_attentions=True)
        with watch(model) as seen:
            watched = model(**cast)
        assert torch.equal(logits(plain), logits(watched))
        compare(logits(plain), [weights.full() for weights in attentions(plain)], "heedful, attentions")
        compare(logits(watched), weights_of(seen), "heedful, watched")


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str) -> None:
    check(name, "left" if name in tiny_models.PADDED else None, torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_model_in_every_dtype_and_padding(name: str, padding: str | None, dtype: torch.dtype) -> None:
    if padding is not None and name not in tiny_models.PADDED:
        pytest.skip("reads no text")
    check(name, padding, dtype)
