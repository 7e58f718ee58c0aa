"""Public reports of mistakes in attention modules: each that names an input is a test, with the value that is right.

Tests that stand with their subject are listed under ELSEWHERE; what has no test here has its reason under WITHOUT_TEST.
"""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import heedful
from cases import attend, every_backend
from heedful import MultiHeadAttention, masks

# By file: the test, and the reports that it shows.
ELSEWHERE = {
    "test_nn_attention.py": {
        "test_a_column_of_padding_keeps_the_shape": "pytorch#86120, #107084: a column of padding, in training and eval",
        "test_hooks_on_the_module_run_in_eval_too": "pytorch#128413: hooks skipped",
        "test_weights_come_per_head": "pytorch#34537: weights per head",
        "test_weights_are_not_built_unless_asked": "RT-DETR#678: weights nobody reads",
        "test_items_of_a_batch_do_not_see_each_other": "pytorch#67651: batch first",
        "test_output_projection_is_called": "LoRA-Torch#3, peft#761: adapters",
        "test_dropout_is_off_in_eval": "pytorch#124464: dropout in eval",
        "test_each_input_projection_has_its_own_xavier_bound": "pytorch#166378: packed init",
        "test_rows_sum_to_one_over_the_keys": "PyTorch-NLP#2, pytorch-image-models PR#2236: axis, mask after softmax",
    },
    "huggingface/test_bridge.py": {
        "test_causality_where_there_is_no_mask": "transformers PR#45811: no mask function",
    },
    "test_nn_convert.py": {
        "test_from_torch_computes_the_same": "pytorch#41070: a vdim of its own",
    },
    "compiled/test_compile.py": {
        "test_the_module_forward_and_backward": "pytorch#177013, #94434: one graph",
    },
    "compiled/test_export.py": {
        "test_an_exported_program_is_saved_and_runs_for_other_lengths": "pytorch#121109: export",
    },
    "contract/test_derivatives.py": {
        "test_second_derivative_of_the_output": "pytorch#116350: second derivative",
        "test_vmap_equals_a_loop": "pytorch#102457, mlx#3383: vmap",
    },
    "test_positions_sinusoidal.py": {
        "test_encoding_is_the_posts_for_odd_and_even_sizes": "BERT-pytorch#78: odd width",
        "test_module_adds_rows_not_columns_and_the_same_for_every_item": "DiffPoseTalk#20: the wrong axis",
        "test_columns_of_a_pair_share_a_frequency": "DeepCTR#379: frequency per column",
        "test_bad_input_says_what_to_do": "pytorch-seq2seq#89: past the table",
    },
    "test_positions_rotary.py": {
        "test_layouts_agree_after_a_permutation_and_on_the_first_token": "transformers#25199: rotary layouts",
        "test_angles_are_float32_whatever_the_dtype": "gpt-neox#1003, transformers PR#29285: angles in half precision",
        "test_explicit_factor_wins_over_the_ratio_of_lengths": "transformers#38224: the explicit factor",
        "test_length_comes_from_positions_and_each_item_has_its_own": "transformers#25104: the length",
    },
    "test_positions_bias.py": {
        "test_alibi_favors_near_keys": "attention-gym PR#86: the sign of ALiBi",
    },
    "test_cache.py": {
        "test_evicted_tokens_still_count": "flash-linear-attention#766: offsets with a cache",
        "test_left_padding_with_relative_positions": "nnsight PR#673, transformers#29419: left padding",
        "test_slots_not_yet_written_are_not_seen": "transformers PR#30414: empty slots",
    },
    "contract/test_memory.py": {
        "test_grouped_heads_are_not_repeated": "ComfyUI PR#15135, pytorch PR#181528: grouped heads repeated",
    },
}
WITHOUT_TEST = {
    "pytorch#118025: weights that ignore the mask": "gives no input, and the weights of every mask are compared anyway",
    "pytorch#96103: a warning for masks of equivalent types": "heedful takes one kind of mask and warns of nothing",
    "FlyDSL PR#1020 in fp8": "there is no fp8 here; the same in float32 is a test",
    "exllamav3#259, sglang PR#22711: YaRN's magnitude": "the two disagree; heedful does as transformers does",
}


@every_backend
def test_a_banded_mask_with_padding_leaves_finite_gradients(backend: str) -> None:
    """pytorch#41508: a row without a key made every gradient NaN."""
    x = torch.randn(3, 1, 4, 1, requires_grad=True)
    mask = masks.window(2) & masks.lengths(torch.tensor([4, 1, 2]))
    output, _ = attend(x, x, x, mask, backend=backend)
    assert not output[1, :, 2:].any()
    output.sum().backward()
    assert x.grad.isfinite().all()


@every_backend
def test_a_long_window_of_ones_is_finite_with_and_without_weights(backend: str) -> None:
    """pytorch#127055: n=600, window 10, ones: NaN without weights, fine with."""
    x = torch.ones(1, 1, 600, 2)
    output, weights = attend(x, x, x, masks.window(10), backend=backend)
    torch.testing.assert_close(output, x)
    torch.testing.assert_close(weights[0, 0, 300, 291:301], torch.full((10,), 0.1))


@every_backend
def test_a_sample_of_length_0_gives_zeros(backend: str) -> None:
    """pytorch#103963, #24816: lengths [5, 3, 1, 0]."""
    x = torch.randn(4, 2, 5, 4)
    output, weights = attend(x, x, x, masks.lengths(torch.tensor([5, 3, 1, 0])), backend=backend)
    assert not output[3].any()
    assert torch.equal((weights.full() > 0).sum(-1)[:, 0, 0], torch.tensor([5, 3, 1, 0]))


@every_backend
def test_rows_of_the_smallest_finite_float_have_finite_gradients(backend: str) -> None:
    """pytorch#109517: L=S=441, rows of finfo.min."""
    q, k, v = (torch.randn(1, 2, 441, 4, requires_grad=True) for _ in range(3))
    bias = torch.zeros(441, 441).index_fill(0, torch.arange(0, 441, 7), torch.finfo(torch.float32).min)
    output, _ = attend(q, k, v, attn_bias=bias, backend=backend)
    output.sum().backward()
    assert all(x.isfinite().all() for x in (output, q.grad, k.grad, v.grad))


@every_backend
def test_left_padding_gives_zero_rows_and_leaves_real_tokens_alone(backend: str) -> None:
    """transformers#32390: batch 2, lengths 4 and 2, left padded."""
    q, k, v = (torch.randn(2, 2, 4, 3) for _ in range(3))
    keep = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    output, _ = attend(q, k, v, masks.causal() & masks.padding(keep), backend=backend)
    alone, _ = attend(q[1:, :, 2:], k[1:, :, 2:], v[1:, :, 2:], masks.causal(), backend=backend)
    assert not output[1, :, :2].any()
    torch.testing.assert_close(output[1:, :, 2:], alone)


@every_backend
def test_two_masks_in_half_precision_do_not_overflow(backend: str) -> None:
    """transformers PR#17306, fairseq#3575: two minima added give -inf in bfloat16; logic does not."""
    x = torch.randn(2, 2, 4, 8).half() * 4
    output, weights = attend(x, x, x, masks.causal() & masks.lengths(torch.tensor([3, 2])), backend=backend)
    assert output.isfinite().all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 4))


@every_backend
def test_a_length_just_over_a_block_has_finite_gradients(backend: str) -> None:
    """pytorch#153799: length 1025, bfloat16."""
    x = torch.randn(1, 1, 1025, 4).bfloat16().requires_grad_()
    attend(x, x, x, masks.causal(), softcap=5.0, backend=backend).output.sum().backward()
    assert x.grad.isfinite().all()


@every_backend
def test_a_query_whose_keys_are_all_masked_is_0_and_not_the_mean(backend: str) -> None:
    """mlx#2395, onnxruntime PR#28958: V = [1], [3]: 0, not 2."""
    q, k, v = torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 2, 1), torch.tensor([1.0, 3.0]).view(1, 1, 2, 1)
    assert attend(q, k, v, torch.zeros(1, 2, dtype=torch.bool), backend=backend).output.item() == 0
    assert attend(q, k, v, attn_bias=torch.full((1, 2), -torch.inf), backend=backend).output.item() == 0


@every_backend
def test_values_of_one_give_one(backend: str) -> None:
    """FlyDSL PR#1020: with V all ones, output was .637."""
    x = torch.randn(2, 2, 6, 4)
    output, _ = attend(x, x, torch.ones(2, 2, 6, 3), masks.causal(), backend=backend)
    torch.testing.assert_close(output, torch.ones(2, 2, 6, 3))


@every_backend
@pytest.mark.parametrize("sink", [0.5, 100.0])
def test_a_sink_alone_is_the_logsumexp(sink: float, backend: str) -> None:
    """flash-attention PR#2752: output 0 but logsumexp NaN; large sink: infinity."""
    x = torch.randn(1, 1, 2, 4)
    output, weights = attend(x, x, x, masks.prefix(0), sinks=torch.tensor([sink]), backend=backend)
    assert not output.any()
    torch.testing.assert_close(weights.logsumexp(), torch.full((1, 1, 2), sink))


@every_backend
def test_the_gradient_of_a_bias_alone(backend: str) -> None:
    """pytorch PR#188302: d bias_ij = p_ij (dp_ij - sum_k p_ik dp_ik), where only the bias needs one."""
    q, k, v = torch.randn(3, 1, 1, 2, 2).unbind()
    bias = torch.randn(2, 2, requires_grad=True)
    output, weights = attend(q, k, v, attn_bias=bias, backend=backend)
    output.sum().backward()
    p, dp = weights.full().detach()[0, 0], v[0, 0].sum(-1).expand(2, 2)
    torch.testing.assert_close(bias.grad, p * (dp - (p * dp).sum(-1, keepdim=True)))


@every_backend
def test_a_masked_key_has_weight_exactly_0_beside_very_negative_scores(backend: str) -> None:
    """keras PR#15390: a -1e9 constant leaves a tiny weight where live keys score lower still."""
    q, k = torch.full((1, 1, 1, 1), 1e5), torch.tensor([-1e5, 0.0, -1e5]).view(1, 1, 3, 1)
    _, weights = attend(q, k, k, torch.tensor([[True, False, True]]), backend=backend)
    assert weights.full().flatten().tolist() == [0.5, 0.0, 0.5]


@every_backend
def test_true_keeps_the_lower_triangle(backend: str) -> None:
    """LLMs-from-scratch#1061: a block mask given where True means keep attends to the future."""
    x = torch.randn(1, 2, 3, 4)
    _, weights = attend(x, x, x, torch.ones(3, 3).tril().bool(), backend=backend)
    assert torch.equal(weights.full()[0, 0] > 0, torch.ones(3, 3).tril().bool())


def test_a_float_triangle_is_refused_instead_of_being_a_small_bias() -> None:
    """pytorch#21518: a float 0/1 lower triangle blocked nothing."""
    x = torch.randn(1, 2, 8, 3)
    with pytest.raises(TypeError, match=r"mask must be bool or integer 0/1, got float32 \(8, 8\)"):
        heedful.scaled_dot_product_attention(x, x, x, torch.ones(8, 8).tril())


@every_backend
def test_a_bool_mask_is_never_added(backend: str) -> None:
    """transformers PR#41443: a bool mask added to the scores is nearly right."""
    x = torch.zeros(1, 1, 3, 2)
    _, weights = attend(x, x, x, torch.eye(3, dtype=torch.bool), backend=backend)
    assert torch.equal(weights.full()[0, 0], torch.eye(3))


@every_backend
def test_padding_hides_columns(backend: str) -> None:
    """attention-is-all-you-need-keras#16: padding on the query axis gives uniform rows."""
    x = torch.randn(2, 2, 3, 4)
    _, weights = attend(x, x, x, masks.lengths(torch.tensor([3, 2])), backend=backend)
    assert not weights[1, ..., 2].any()
    assert (weights[1, ..., :2] > 0).all()


def test_a_3_d_mask_with_heads_is_refused_and_its_spelling_works() -> None:
    """pytorch#120810: (B, L, S) fails with several heads, or aligns to the head axis."""
    x, keep = torch.randn(2, 2, 3, 4), torch.rand(2, 3, 3) < 0.6
    with pytest.raises(ValueError, match="its first size could mean batch or heads"):
        heedful.scaled_dot_product_attention(x, x, x, keep)
    _, weights = heedful.scaled_dot_product_attention(x, x, x, keep[:, None])
    assert torch.equal(weights.full() > 0, keep[:, None].expand(2, 2, 3, 3))


@every_backend
def test_a_change_of_the_last_token_leaves_earlier_outputs_alone(backend: str) -> None:
    """transformers PR#48769: 4 tokens, change the last."""
    x = torch.randn(1, 2, 4, 4)
    y = x.clone()
    y[:, :, -1] += 1
    before, after = (attend(t, t, t, masks.causal(), backend=backend).output for t in (x, y))
    assert torch.equal(before[:, :, :-1], after[:, :, :-1])
    assert not torch.equal(before[:, :, -1], after[:, :, -1])


@every_backend
def test_a_masked_value_changed_changes_nothing(backend: str) -> None:
    """xformers#103: a mask accepted, then dropped by the chosen kernel."""
    x, keep = torch.randn(1, 2, 4, 4), torch.tensor([True, True, True, False]).expand(4, 4)
    v = x.clone()
    v[:, :, 3] += 100
    assert torch.equal(
        attend(x, x, x, keep, backend=backend).output, attend(x, x, v, keep, backend=backend).output
    )


@every_backend
def test_batch_items_do_not_mix(backend: str) -> None:
    """pytorch#67651: sequence and batch swapped by a view."""
    x = torch.randn(2, 2, 3, 4)
    y = x.clone()
    y[0] += 1
    assert torch.equal(attend(x, x, x, backend=backend).output[1], attend(y, y, y, backend=backend).output[1])


@every_backend
def test_the_scale_is_that_of_the_head(backend: str) -> None:
    """vit-pytorch#65, ng-video-lecture PR#6: E=8, H=2: divide by 2, not by the square root of 8."""
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    _, weights = attend(q, k, k, backend=backend)
    torch.testing.assert_close(weights.full(), (q @ k.mT / 2).softmax(-1))
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 3))


@every_backend
def test_query_heads_share_the_key_head_of_their_neighbors(backend: str) -> None:
    """jax-js PR#180, onnx PR#7274: 0, 0, 1, 1 and not 0, 1, 0, 1."""
    q, k = torch.randn(1, 4, 2, 3), torch.randn(1, 2, 5, 3)
    _, weights = attend(q, k, k, backend=backend)
    for head, group in enumerate((0, 0, 1, 1)):
        torch.testing.assert_close(
            weights[0, head].full(), (q[0, head] @ k[0, group].mT / math.sqrt(3)).softmax(-1)
        )


@every_backend
def test_rows_sum_to_one_minus_the_sink(backend: str) -> None:
    """flash-attention#603: two keys and one sink logit."""
    x = torch.zeros(1, 1, 2, 2)
    _, weights = attend(x, x, x, sinks=torch.tensor([0.0]), backend=backend)
    torch.testing.assert_close(weights.full(), torch.full((1, 1, 2, 2), 1 / 3))


@every_backend
def test_rows_after_the_last_boundary_are_0_and_have_no_gradient(backend: str) -> None:
    """flash-attention#1537: boundaries [0, 2], 3 rows."""
    x = torch.randn(1, 2, 3, 4, requires_grad=True)
    output, _ = attend(x, x, x, masks.documents(torch.tensor([0, 0, -1])), backend=backend)
    output.sum().backward()
    assert not output[:, :, 2].any()
    assert not x.grad[:, :, 2].any()


def test_a_mask_of_another_length_is_refused() -> None:
    """pytorch#134756: a mask for 256 used again at 200."""
    x = torch.randn(1, 1, 200, 4)
    with pytest.raises(ValueError, match="documents names 256 keys, the call has 200"):
        heedful.scaled_dot_product_attention(x, x, x, masks.documents(torch.zeros(256, dtype=torch.int64)))


@every_backend
def test_a_bool_row_without_a_key_is_0(backend: str) -> None:
    """pytorch#103749: q (1, 1, 2, 4), the second row all False."""
    x = torch.randn(1, 1, 2, 4)
    output, weights = attend(x, x, x, torch.tensor([[True, True], [False, False]]), backend=backend)
    torch.testing.assert_close(weights.sum(-1), torch.tensor([[[1.0, 0.0]]]))
    assert not output[0, 0, 1].any()


@pytest.mark.parametrize("training", [True, False])
def test_a_blocked_first_row_is_0_with_dropout_and_whoever_asks(training: bool) -> None:
    """pytorch#152028: q (2, 3, 8), k = v (2, 4, 8), dropout 0.5: NaN with weights, fine without."""
    module = nn.MultiheadAttention(8, 2, bias=False, dropout=0.5, batch_first=True)
    ours = MultiHeadAttention.from_torch(module.train(training))
    query, key = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    keep = torch.ones(3, 4, dtype=torch.bool)
    keep[0] = False
    output, weights = ours(query, key, mask=keep)
    assert weights.full().isfinite().all()
    assert not output[:, 0].any()
    assert output[:, 1:].isfinite().all()


def test_one_mask_in_both_polarities() -> None:
    """x-transformers#160, pytorch PR#170415: True keeps in one function and hides in another."""
    x, keep = torch.randn(2, 2, 2, 4), torch.tensor([[True, False], [True, True]])
    kept, hidden = (
        heedful.scaled_dot_product_attention(x, x, x, m).weights for m in (keep, masks.from_torch(~keep))
    )
    assert torch.equal(kept.full(), hidden.full())
    assert not kept[..., 0, 1].any()


def test_causal_is_an_order_whether_or_not_weights_are_asked() -> None:
    """pytorch#99282: MHA(4, 1), L = 3: the causal flag was ignored when weights were asked for."""
    module, x = MultiHeadAttention(4, 1), torch.randn(2, 3, 4)
    by_rule, explicit = module(x, mask=masks.causal()), module(x, mask=torch.ones(3, 3).tril().bool())
    assert not by_rule.weights.full().triu(1).any()
    torch.testing.assert_close(by_rule.output, explicit.output)
    assert torch.equal(by_rule.output, module(x, mask=masks.causal(), reduce=heedful.Entropy()).output)


def test_a_finite_float_mask_is_a_bias_in_training_and_in_eval() -> None:
    """pytorch#118628, #97605: the fast path made it bool; one of three dimensions failed in eval."""
    torchs = nn.MultiheadAttention(8, 2, batch_first=True)
    ours, x, bias = MultiHeadAttention.from_torch(torchs), torch.randn(3, 4, 8), torch.randn(3 * 2, 4, 4)
    expected, _ = torchs(x, x, x, attn_mask=bias)
    for training in (True, False):
        with torch.set_grad_enabled(training):
            output, _ = ours.train(training)(x, attn_bias=bias.unflatten(0, (3, 2)))
        torch.testing.assert_close(output, expected)


def test_a_float_padding_mask_hides() -> None:
    """pytorch#92554, #95702: [0, -inf] was taken for a mask to fill and ignored."""
    x = torch.randn(1, 2, 2, 4)
    for given in (
        {"mask": masks.from_torch(key_padding_mask=torch.tensor([[0.0, -torch.inf]]))},
        {"attn_bias": torch.tensor([0.0, -torch.inf]).view(1, 1, 1, 2)},
    ):
        _, weights = heedful.scaled_dot_product_attention(x, x, x, **given)
        assert torch.equal(weights.full(), torch.tensor([1.0, 0.0]).expand(1, 2, 2, 2))


@every_backend
def test_five_dimensions_are_four(backend: str) -> None:
    """pytorch#133458: five dimensions took the slow route, and gave other numbers."""
    x = torch.randn(2, 3, 2, 5, 4)
    output, weights = attend(x, x, x, masks.causal(), backend=backend)
    four, _ = attend(x.flatten(0, 1), x.flatten(0, 1), x.flatten(0, 1), masks.causal(), backend=backend)
    assert torch.equal(output.flatten(0, 1), four)
    assert weights.entropy().shape == (2, 3, 2, 5)


@pytest.mark.parametrize("path", ELSEWHERE)
def test_a_report_is_tested_elsewhere(path: str) -> None:
    text = (Path(__file__).parent / path).read_text()
    assert [name for name in ELSEWHERE[path] if f"\ndef {name}(" not in text] == []
