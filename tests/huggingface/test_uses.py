"""What other code makes of watched weights: Whisper's own word times. tests/outside hands them to viewers."""

import pytest
import torch

import tiny_models
from heedful.watching import watch

pytest.importorskip("transformers")


def test_word_times_are_whispers_own() -> None:
    """transformers turns cross-attention of chosen heads into times, from matrices; watched weights give the same."""
    from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

    model = tiny_models.make("whisper")
    given = tiny_models.inputs("whisper")
    heads = [[0, 1], [1, 3]]
    with torch.no_grad(), watch(model, layers="*.encoder_attn") as seen:
        model(**given)
    watched = list(seen.layers)
    chosen = torch.stack([watched[layer].full()[:, head] for layer, head in heads], 1)

    eager = tiny_models.make("whisper", implementation="eager")
    with torch.no_grad():
        matrices = eager(**given, output_attentions=True).cross_attentions
    expected = torch.stack([matrices[layer][:, head] for layer, head in heads], 1)
    torch.testing.assert_close(chosen, expected, atol=1e-6, rtol=1e-5)
    for ours, theirs in zip(chosen, expected, strict=True):
        paths = []
        for weights in (ours, theirs):
            normal = (weights - weights.mean(-2, keepdim=True)) / weights.std(
                -2, keepdim=True, unbiased=False
            )
            paths.append(_dynamic_time_warping(-_median_filter(normal, 3).mean(0).double().numpy()))
        assert all((a == b).all() for a, b in zip(*paths, strict=True))
