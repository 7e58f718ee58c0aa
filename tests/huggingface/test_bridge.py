"""`heedful.huggingface`: registering, switching, masks as rules, and what cannot be honored."""

import pytest
import torch
from torch import Tensor, nn

import heedful
import tiny_models
from heedful import edits, huggingface, masks
from heedful.masks import Mask
from heedful.watching import edit, watch

transformers = pytest.importorskip("transformers")
from transformers import masking_utils  # noqa: E402


def heads(L: int = 5, S: int = 7, H: int = 4, G: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(2, H, L, 8), torch.randn(2, G, S, 8), torch.randn(2, G, S, 8)


def dense(
    function, L: int, S: int, q_offset: int = 0, kv_offset: int = 0, keep: Tensor | None = None
) -> Tensor:
    """transformers' own answer, (B, 1, L, S)."""
    return masking_utils.sdpa_mask(
        batch_size=2,
        q_length=L,
        kv_length=S,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=function,
        attention_mask=keep,
        allow_is_causal_skip=False,
    )


PACKED = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 2, 2]])
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [0, 0, 1, 2, 3, 0, 1]])


def packed(function):
    """A mask function as transformers wraps it for packed documents. Older versions leave positions as they are."""
    if hasattr(masking_utils, "remap_positions_for_packed_sequence"):
        function = masking_utils.remap_positions_for_packed_sequence(function, POSITIONS)
    return masking_utils.and_masks(function, masking_utils.packed_sequence_mask_function(PACKED))


def blockwise():
    """Causal, and both ways within a block; not in every version."""
    overlay = getattr(masking_utils, "blockwise_overlay", masking_utils.packed_sequence_mask_function)
    return masking_utils.or_masks(masking_utils.causal_mask_function, overlay(PACKED - 1))


FUNCTIONS = {
    "causal": masking_utils.causal_mask_function,
    "sliding": masking_utils.sliding_window_causal_mask_function(3),
    "sliding both ways": masking_utils.sliding_window_bidirectional_mask_function(2),
    "chunked": masking_utils.chunked_causal_mask_function(3, torch.tensor([0, 2])),
    "blockwise": blockwise(),
    "packed": packed(masking_utils.causal_mask_function),
    "packed and sliding": packed(masking_utils.sliding_window_causal_mask_function(2)),
    "own": lambda batch, head, query, key: (query + key + batch) % 3 > 0,
}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_masks_are_those_of_transformers(name: str, padded: bool) -> None:
    keep = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]]).bool() if padded else None
    placed = huggingface.mask(2, 7, 7, mask_function=FUNCTIONS[name], attention_mask=keep)
    expected = dense(FUNCTIONS[name], 7, 7, keep=keep)
    assert placed.shape == (2, 1, 7, 7)
    assert torch.equal(placed.dense, expected)
    query, key, value = heads(7)
    _, weights = huggingface.attention(nn.Module(), query, key, value, placed)
    assert torch.equal(weights.full() > 0, expected.expand(2, 4, 7, 7))


@pytest.mark.parametrize(("q_offset", "kv_offset", "L", "S"), [(4, 0, 1, 5), (6, 2, 3, 7), (0, 0, 3, 7)])
@pytest.mark.parametrize("name", ["causal", "sliding", "own"])
def test_masks_with_a_cache(name: str, q_offset: int, kv_offset: int, L: int, S: int) -> None:
    """Chunks of a prompt, sliding caches, and a static cache that is longer than what was written to it."""
    placed = huggingface.mask(2, L, S, q_offset, kv_offset, FUNCTIONS[name])
    assert torch.equal(placed.dense, dense(FUNCTIONS[name], L, S, q_offset, kv_offset))


def test_common_masks_are_cheap_rules() -> None:
    """A window that transformers writes as a closure becomes a window, which skips the keys it does not reach."""
    for name, rule in {
        "causal": masks.causal(),
        "sliding": masks.window(3, None) & masks.causal(),
        "sliding both ways": masks.window(3, 2),
    }.items():
        assert huggingface.mask(2, 7, 7, mask_function=FUNCTIONS[name]).rule == rule
    assert huggingface.mask(2, 7, 7, mask_function=masking_utils.bidirectional_mask_function) is None
    everyone = torch.ones(2, 7, dtype=torch.bool)
    assert (
        huggingface.mask(2, 7, 7, mask_function=FUNCTIONS["causal"], attention_mask=everyone).rule
        == masks.causal()
    )
    of_own = huggingface.mask(2, 7, 7, mask_function=FUNCTIONS["own"]).rule
    assert isinstance(of_own, huggingface.FunctionMask)
    assert isinstance(of_own, Mask)


def test_a_placed_mask_stands_for_its_tensor() -> None:
    """Models that slice or invert masks find a tensor."""
    placed = huggingface.mask(2, 5, 7, 2, mask_function=FUNCTIONS["causal"])
    expected = dense(FUNCTIONS["causal"], 5, 7, 2)
    assert torch.equal(placed[:, :, :, :4], expected[..., :4])
    assert torch.equal(torch.logical_not(placed), ~expected)
    assert (placed.ndim, placed.dtype) == (4, torch.bool)
    assert huggingface.mask(2, 5, 7, attention_mask=placed) is placed


# The attention function


def of(**options) -> Tensor:
    query, key, value = torch.randn(3, 2, 4, 5, 8)
    module = options.pop("module", nn.Module())
    torch.manual_seed(0)
    output, weights = huggingface.attention(module, query, key, value, options.pop("mask", None), **options)
    torch.testing.assert_close(output.transpose(1, 2), weights.full() @ value, atol=1e-5, rtol=1e-5)
    return weights.full() > 0


def test_causality_where_there_is_no_mask() -> None:
    """The flag of the call wins over the module's; without either a module is causal; one query sees everything."""
    module = nn.Module()
    module.is_causal = False
    causal, everybody = (
        torch.ones(5, 5, dtype=torch.bool).tril().expand(2, 4, 5, 5),
        torch.ones(2, 4, 5, 5).bool(),
    )
    assert torch.equal(of(), causal)
    assert torch.equal(of(module=module), everybody)
    assert torch.equal(of(module=module, is_causal=True), causal)
    assert torch.equal(of(is_causal=False), everybody)
    query, key, value = heads(1, 7)
    assert (huggingface.attention(nn.Module(), query, key, value, None)[1].full() > 0).all()


def test_a_static_cache_without_a_mask_is_causal_from_its_start() -> None:
    query, key, value = heads(5, 7)
    _, weights = huggingface.attention(nn.Module(), query, key, value, None)
    assert torch.equal(weights.full()[0, 0] > 0, torch.ones(5, 7, dtype=torch.bool).tril())


def test_windows_and_documents_by_flags() -> None:
    i = torch.arange(5)
    distance = i[:, None] - i
    near = ((distance >= 0) & (distance < 2)).expand(2, 4, 5, 5)
    assert torch.equal(of(sliding_window=2), near)
    assert torch.equal(of(sliding_window=2, is_causal=False), (distance.abs() < 2).expand(2, 4, 5, 5))
    ends = torch.tensor([0, 2, 5])
    same = (i[:, None] >= 2) == (i >= 2)
    found = of(is_causal=False, cu_seq_lens_q=ends, cu_seq_lens_k=ends)
    assert torch.equal(found, same.expand(2, 4, 5, 5))
    assert torch.equal(
        of(cu_seq_lens_q=ends, cu_seq_lens_k=ends), (same & (distance >= 0)).expand(2, 4, 5, 5)
    )


def test_masks_as_tensors() -> None:
    keep = torch.rand(2, 1, 5, 9) > 0.4
    assert torch.equal(of(mask=keep), keep[..., :5].expand(2, 4, 5, 5)), "longer than the keys, and cut"
    added = torch.zeros(2, 1, 5, 5).masked_fill(~keep[..., :5], -torch.inf)
    assert torch.equal(of(mask=added), keep[..., :5].expand(2, 4, 5, 5))


def test_scores_follow_every_option() -> None:
    query, key, value = heads(5, 5)
    bias, sinks = torch.randn(1, 4, 5, 5), torch.randn(4)
    _, weights = huggingface.attention(
        nn.Module(),
        query,
        key,
        value,
        None,
        scaling=0.5,
        position_bias=bias,
        softcap=2.0,
        s_aux=sinks,
        is_causal=False,
    )
    scores = query.double() @ key.repeat_interleave(2, 1).double().mT * 0.5
    scores = 2 * torch.tanh(scores / 2) + bias
    scores = torch.cat([scores, sinks.double().view(4, 1, 1).expand(2, 4, 5, 1)], -1)
    torch.testing.assert_close(
        weights.full().double(), torch.softmax(scores, -1)[..., :5], atol=1e-6, rtol=1e-5
    )


def test_what_cannot_be_honored_is_refused() -> None:
    query, key, value = heads(5, 5)
    with pytest.raises(NotImplementedError) as caught:
        huggingface.attention(nn.Linear(2, 2), query, key, value, None, indices=torch.zeros(1))
    assert str(caught.value) == (
        "Linear chooses keys per query (indices=), which heedful cannot honor. Load it with "
        "attn_implementation='sdpa' or 'eager'."
    )


# Models


def test_from_config_under_the_registered_name() -> None:
    huggingface.register()
    model = tiny_models.make("llama", implementation="heedful")
    with torch.no_grad():
        outputs = model(**tiny_models.inputs("llama"), output_attentions=True)
    assert [type(weights) for weights in outputs.attentions] == [heedful.Weights] * 2
    assert outputs.attentions[1][0, 3].entropy().shape == (9,)


def test_generation_gives_weights_step_by_step() -> None:
    model = huggingface.use(tiny_models.make("llama"))
    options = {
        "max_new_tokens": 3,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_attentions": True,
    }
    outputs = model.generate(**tiny_models.inputs("llama"), **options)
    assert [step[1].shape for step in outputs.attentions] == [(3, 4, 9, 9), (3, 4, 1, 10), (3, 4, 1, 11)]


def test_gradients_in_training() -> None:
    """Training through heedful gives the gradients that "eager" gives."""
    grads = []
    for implementation in ("eager", "heedful"):
        model = tiny_models.make("llama", implementation="eager").train()
        if implementation == "heedful":
            huggingface.use(model)
        given = tiny_models.inputs("llama")
        model(**given, labels=given["input_ids"]).loss.backward()
        grads.append([parameter.grad for parameter in model.parameters()])
    for eager, ours in zip(*grads, strict=True):
        torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-3)


def test_dropout_in_training() -> None:
    """The rate of the configuration is used in training and not in evaluation; weights are those before it."""
    torch.manual_seed(0)
    settings = {**tiny_models.DECODER, "attention_dropout": 0.5}
    model = huggingface.use(transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)))
    given = tiny_models.inputs("llama")
    with torch.no_grad():
        still = [model.eval()(**given, output_attentions=True) for _ in range(2)]
        moving = [model.train()(**given, output_attentions=True) for _ in range(2)]
    assert torch.equal(still[0].logits, still[1].logits)
    assert not torch.equal(moving[0].logits, moving[1].logits)
    torch.testing.assert_close(moving[0].attentions[0].full(), still[0].attentions[0].full())
    torch.manual_seed(4)
    first = model(**given).logits
    torch.manual_seed(4)
    assert torch.equal(first, model(**given).logits)


def test_watching_a_model_in_training_with_dropout() -> None:
    settings = {**tiny_models.DECODER, "attention_dropout": 0.5}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).train()
    given = tiny_models.inputs("llama")
    torch.manual_seed(3)
    plain = model(**given).logits
    torch.manual_seed(3)
    with watch(model) as seen:
        assert torch.equal(model(**given).logits, plain)
    torch.testing.assert_close(seen.layers[0].sum(-1), torch.ones(3, 4, 9))


def test_edits_count_the_heads_of_the_model() -> None:
    """In decoding, transformers packs query heads for torch; head 3 is still head 3."""
    for implementation in ("sdpa", "heedful"):
        model = tiny_models.make("llama")
        if implementation == "heedful":
            huggingface.use(model)
        given = tiny_models.inputs("llama", "left")
        options = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
        with edit(model, {"*.1.self_attn": edits.ablate(3)}), watch(model) as seen:
            model.generate(**given, **options)
        for weights in seen["model.layers.1.self_attn"]:
            mass = weights.sum(-1)[..., -1]
            torch.testing.assert_close(mass, torch.tensor([1.0, 1, 1, 0]).expand(3, 4))
        for weights in seen["model.layers.0.self_attn"]:
            torch.testing.assert_close(weights.sum(-1)[..., -1], torch.ones(3, 4))


def bloom() -> nn.Module:
    config = transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)
    return transformers.BloomForCausalLM(config).eval()


def test_a_model_with_a_softmax_of_its_own() -> None:
    """transformers accepts any implementation for Bloom, and never calls it."""
    model = bloom()
    with pytest.raises(ValueError) as caught:
        huggingface.use(model)
    assert str(caught.value) == (
        "BloomForCausalLM computes its attention itself: transformers logs a warning for any other implementation and "
        "keeps its own. Pass output_attentions=True to its call for the whole matrices."
    )
    with pytest.raises(RuntimeError) as caught, torch.no_grad(), watch(model):
        model(**tiny_models.inputs("llama"))
    assert str(caught.value) == (
        "watch() could not see the attention of 2 modules of BloomForCausalLM: 'transformer.h.0.self_attention', "
        "'transformer.h.1.self_attention'. Of BloomAttention: it takes a softmax of its own. transformers has one "
        "implementation of it only. Pass output_attentions=True to its call for the whole matrices."
    )


def test_eager_models_are_told_of_use() -> None:
    model = tiny_models.make("llama", implementation="eager")
    with pytest.raises(RuntimeError) as caught, torch.no_grad(), watch(model):
        model(**tiny_models.inputs("llama"))
    assert str(caught.value) == (
        "watch() could not see the attention of 2 modules of LlamaForCausalLM: 'model.layers.0.self_attn', "
        "'model.layers.1.self_attn'. Of LlamaAttention: it takes a softmax of its own. Write "
        "heedful.huggingface.use(model) before the block: the same attention, where it can be seen."
    )


@pytest.mark.parametrize(
    "kernel", ["flash_attention_2", "flex_attention", "paged|sdpa", "kernels-community/any"]
)
def test_kernels_from_outside_are_refused_before_the_block(kernel: str) -> None:
    model = tiny_models.make("llama")
    model.config._attn_implementation_internal = kernel
    with pytest.raises(ValueError) as caught, watch(model):
        pass
    assert str(caught.value) == (
        f"watch(): the model runs attn_implementation='{kernel}', a kernel whose queries and keys cannot be seen. "
        "Write model.set_attn_implementation('sdpa') first, or heedful.huggingface.use(model): same weights, same "
        "answer up to rounding."
    )


def test_output_attentions_in_the_configuration_has_a_way_round() -> None:
    model = tiny_models.make("llama", implementation="eager")
    model.config.output_attentions = True
    with pytest.raises(ValueError) as caught:
        huggingface.use(model)
    assert str(caught.value) == (
        "LlamaForCausalLM has config.output_attentions=True, which transformers allows with 'eager' only. Write "
        "model.config.output_attentions = False, and pass output_attentions=True to the calls that shall have them."
    )
    model.config.output_attentions = False
    outputs = huggingface.use(model)(**tiny_models.inputs("llama"), output_attentions=True)
    assert len(outputs.attentions) == 2


def test_only_models_of_transformers_can_be_switched() -> None:
    with pytest.raises(TypeError) as caught:
        huggingface.use(nn.Linear(2, 2))
    assert str(caught.value) == "model must be a model of transformers, got Linear."


@pytest.mark.parametrize("implementation", ["sdpa", "heedful"])
def test_a_compiled_model_runs_uncompiled_inside_the_block(implementation: str) -> None:
    """Compiled code never comes back to Python, where watching listens."""
    model = tiny_models.make("llama")
    if implementation == "heedful":
        huggingface.use(model)
    given = tiny_models.inputs("llama", "left")
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        plain, before = model(**given).logits, compiled(**given).logits
        with watch(compiled) as seen:
            assert torch.equal(compiled(**given).logits, plain)
        with watch(model) as expected:
            model(**given)
        assert torch.equal(compiled(**given).logits, before)
    torch.testing.assert_close(before, plain, atol=1e-5, rtol=1e-4)
    assert list(seen) == [f"model.layers.{i}.self_attn" for i in (0, 1)]
    for name, calls in seen.items():
        assert torch.equal(calls.full(), expected[name].full())


def test_half_of_the_layers() -> None:
    model = tiny_models.make("gemma3")
    with torch.no_grad(), watch(model, heedful.Entropy(), layers=range(0, 6, 2)) as seen:
        model(**tiny_models.inputs("gemma3"))
    assert list(seen) == [f"model.layers.{i}.self_attn" for i in (0, 2, 4)]


def test_the_implementation_of_transformers_is_put_back() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    model = tiny_models.make("llama")
    with pytest.raises(KeyboardInterrupt), watch(model):
        raise KeyboardInterrupt
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before
