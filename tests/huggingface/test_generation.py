"""Generation with caches: every step's weights are those of the whole sequence at once, and steps stitch into rows."""

import pytest
import torch
from torch import Tensor

import heedful
from heedful import huggingface
from heedful.watching import watch
from tiny_models import DECODERS, inputs, make

pytest.importorskip("transformers")

NEW = 5
# transformers' "sdpa" refuses their softcap and sinks.
EAGER_ONLY = ("gemma2", "gpt_oss")


def model_of(name: str, implementation: str, dtype: torch.dtype = torch.float32):
    model = make(name, dtype, "eager" if implementation == "heedful" else implementation)
    return huggingface.use(model) if implementation == "heedful" else model


def generate(model, padding: str | None, **options):
    given = inputs("llama", padding)
    options = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, **options}
    return model.generate(**given, **options), given


def at_once(model, ids: Tensor, given: dict[str, Tensor]) -> list[Tensor]:
    """The rows of the new tokens, from one pass over the whole sequence without a cache."""
    keep = given.get("attention_mask")
    if keep is not None:
        keep = torch.cat([keep, keep.new_ones(len(ids), ids.shape[1] - keep.shape[1])], 1)
    positions = None if keep is None else (keep.cumsum(1) - 1).clamp(min=0)
    extra = (
        {}
        if positions is None or model.config.model_type == "gpt_neox"
        else {"position_ids": positions[:, :-1]}
    )
    with torch.no_grad(), watch(model) as seen:
        model(ids[:, :-1], attention_mask=keep if keep is None else keep[:, :-1], use_cache=False, **extra)
    return [calls.full()[..., -NEW:, :] for calls in seen.values()]


@pytest.mark.parametrize("implementation", ["sdpa", "heedful"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_rows_of_a_generation(name: str, cache: str, implementation: str) -> None:
    if implementation == "sdpa" and name in EAGER_ONLY:
        pytest.skip("transformers' sdpa refuses it")
    check(name, cache, implementation, "left")


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["sdpa", "heedful"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padding", [None, "left"])
@pytest.mark.parametrize("name", DECODERS)
def test_rows_of_every_decoder(name: str, padding: str | None, cache: str, implementation: str) -> None:
    if implementation == "sdpa" and name in EAGER_ONLY:
        pytest.skip("transformers' sdpa refuses it")
    check(name, cache, implementation, padding)


def check(name: str, cache: str, implementation: str, padding: str | None) -> None:
    model = model_of(name, implementation)
    options = {"cache_implementation": "static"} if cache == "static" else {}
    plain, _ = generate(model, padding, **options)
    with watch(model) as seen:
        ids, given = generate(model, padding, **options)
    assert torch.equal(plain, ids)
    for rows, expected in zip(seen.rows().values(), at_once(model, ids, given), strict=True):
        assert rows.shape[:3] == (3, model.config.num_attention_heads, NEW)
        width = expected.shape[-1]
        assert rows[..., width:].abs().sum() == 0, "slots of a static cache that were never written to"
        torch.testing.assert_close(rows[..., :width], expected, atol=2e-6, rtol=1e-4)


def test_a_generation_under_inference_mode() -> None:
    model = model_of("llama", "sdpa")
    with watch(model) as expected:
        generate(model, "left")
    for cache in ({}, {"cache_implementation": "static"}):
        with torch.inference_mode(), watch(model) as seen:
            generate(model, "left", **cache)
        for name, rows in expected.rows().items():
            found = seen.rows()[name][..., : rows.shape[-1]]
            torch.testing.assert_close(found, rows, atol=1e-6, rtol=1e-5)


def test_reductions_of_a_generation() -> None:
    model = model_of("llama", "sdpa")
    with watch(model) as seen, watch(model, heedful.Entropy()) as answers:
        generate(model, None)
    assert [weights.entropy().shape for weights in answers.layers[1]] == [(3, 4, 9), *[(3, 4, 1)] * (NEW - 1)]
    for kept, later in zip(answers.layers[1], seen.layers[1], strict=True):
        assert torch.equal(kept.entropy(), later.entropy())


def test_grouped_heads_stay_grouped() -> None:
    """For torch, transformers repeats keys, and packs the query heads of one token into rows; neither shows."""
    model = model_of("llama", "sdpa")
    with watch(model) as seen:
        generate(model, "left")
    for weights in seen.layers[0]:
        assert weights.shape[1] == 4
        assert weights.received(per="kv_head").shape[1] == 2
        assert weights._call.key.shape[1] == 2


@pytest.mark.parametrize("implementation", ["sdpa", "heedful"])
def test_rows_follow_beams(implementation: str) -> None:
    """Each returned sequence, run again by itself, looks where its stitched rows say."""
    model = model_of("llama", implementation)
    with watch(model) as seen:
        outputs, given = generate(
            model,
            "left",
            num_beams=3,
            return_dict_in_generate=True,
            output_scores=True,
            num_return_sequences=2,
        )
    keep = given["attention_mask"].repeat_interleave(2, 0)
    expected = at_once(model, outputs.sequences, {"attention_mask": keep})
    for (_, rows), once in zip(seen.rows(outputs.beam_indices).items(), expected, strict=True):
        assert rows.shape == once.shape == (6, 4, NEW, 13)
        torch.testing.assert_close(rows, once, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["t5", "bart", "whisper"])
def test_cross_attention_of_a_generation(name: str) -> None:
    model = model_of(name, "sdpa")
    given = {
        key: x
        for key, x in inputs(name, "right" if name != "whisper" else None).items()
        if "decoder" not in key
    }
    with watch(model) as seen:
        ids = model.generate(**given, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
    if name == "whisper":  # gives back the new tokens only
        ids = torch.cat([torch.ones_like(ids[:, :1]), ids], 1)
    cross = [calls for module, calls in seen.items() if "EncDec" in module or "encoder_attn" in module]
    assert len(cross) == 2
    with torch.no_grad(), watch(model) as once:
        model(**given, decoder_input_ids=ids[:, :-1])
    for calls in cross:
        expected = once[calls.name].full()[..., -len(calls) :, :]
        torch.testing.assert_close(calls.rows(), expected, atol=1e-6, rtol=1e-5)
        assert len({weights._call.key.data_ptr() for weights in calls}) == 1, (
            "the encoder's keys are kept once"
        )


@pytest.mark.parametrize("implementation", ["sdpa", "heedful"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_packed_positions(name: str, implementation: str) -> None:
    """Positions that start again at 0 are documents of their own, where there is no cache."""
    if implementation == "sdpa" and name in EAGER_ONLY:
        pytest.skip("transformers' sdpa refuses it")
    model = model_of(name, implementation)
    ids = inputs("llama")["input_ids"]
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    with torch.no_grad():
        plain = model(ids, position_ids=positions, use_cache=False).logits
        with watch(model) as seen:
            assert torch.equal(model(ids, position_ids=positions, use_cache=False).logits, plain)
        with watch(model) as first:
            model(ids[:, :4], use_cache=False)
        with watch(model) as second:
            model(ids[:, 4:], use_cache=False)
    for calls, one, two in zip(seen.values(), first.values(), second.values(), strict=True):
        whole = torch.zeros(3, 4, 9, 9)
        whole[..., :4, :4], whole[..., 4:, 4:] = one.full(), two.full()
        torch.testing.assert_close(calls.full(), whole, atol=1e-6, rtol=1e-5)
