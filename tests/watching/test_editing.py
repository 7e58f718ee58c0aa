"""`heedful.edit` changes chosen heads and edges of a model, and says so where it could not."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import heedful
from heedful import edits
from heedful.watching import edit, watch
from watched_models import HEADS, WIDTH, Attention, OwnSoftmax, Small, text


def by_hand(model: Small, x: Tensor, chosen: dict[int, list]) -> Tensor:
    """The model in float64, with functions applied to the weights of chosen layers."""
    for number, layer in enumerate(model.layers):
        query, key, value = (part.double() for part in layer.heads(x))
        L = x.shape[1]
        scores = query @ key.mT * (WIDTH // HEADS) ** -0.5
        weights = torch.softmax(
            scores.masked_fill(~torch.ones(L, L, dtype=torch.bool).tril(), -torch.inf), -1
        )
        for change in chosen.get(number, []):
            weights = change(weights)
        x = x + (weights @ value).transpose(1, 2).flatten(2).to(x.dtype)
    return x


def without_heads(*heads: int):
    return lambda weights: weights * (~torch.isin(torch.arange(HEADS), torch.tensor(heads)))[:, None, None]


def without_edge(row: int, key: int):
    def change(weights: Tensor) -> Tensor:
        weights = weights.clone()
        weights[..., row, key] = 0
        return weights

    return change


@pytest.mark.parametrize("grad", [False, True])
def test_heads_and_edges_of_chosen_layers(grad: bool) -> None:
    model, x = Small(), text()
    with torch.set_grad_enabled(grad):
        plain = model(x)
        with edit(model, {"layers.0": edits.ablate(0, 2), "*.2": [edits.cut(4, 1), edits.ablate(1)]}):
            changed = model(x)
        expected = by_hand(model, x, {0: [without_heads(0, 2)], 2: [without_edge(4, 1), without_heads(1)]})
        torch.testing.assert_close(changed, expected, atol=1e-6, rtol=1e-5)
        assert not torch.allclose(changed, plain, atol=1e-3)
        assert torch.equal(model(x), plain), "the model is as it was"


def test_several_patterns_for_one_module_apply_in_order() -> None:
    model, x = Small(Attention), text()
    seen = []

    def first(panel):
        seen.append("first")
        return panel.weights

    def second(panel):
        seen.append("second")
        return panel.weights * 0

    with torch.no_grad(), edit(model, {"layers.*": first, "layers": second}):
        changed = model(x)
    assert seen == ["first", "second"]
    assert torch.equal(changed, x)


def test_a_watch_sees_the_edited_weights_inside_and_outside() -> None:
    model, x = Small(), text()
    edited = {"layers.1": edits.ablate(1)}
    with torch.no_grad():
        with watch(model) as outside, edit(model, edited):
            model(x)
        with edit(model, edited), watch(model, heedful.Mass()) as inside:
            model(x)
    expected = torch.ones(2, HEADS, 5)
    expected[:, 1] = 0
    torch.testing.assert_close(outside.layers[1].sum(-1), expected)
    torch.testing.assert_close(inside.layers[1].reduce(heedful.Mass())[0], expected)
    assert [calls.edited for calls in outside.values()] == [False, True, False]


def test_edits_nest() -> None:
    model, x = Small(Attention), text()
    with torch.no_grad(), edit(model, {"*.0": edits.ablate(0)}), edit(model, {"*.0": edits.ablate(1)}):
        changed = model(x)
    torch.testing.assert_close(changed, by_hand(model, x, {0: [without_heads(0, 1)]}), atol=1e-6, rtol=1e-5)


def test_a_model_of_heedful_modules() -> None:
    model, x = nn.Sequential(heedful.MultiHeadAttention(WIDTH, HEADS)), text()
    with torch.no_grad():
        with edit(model, {"0": edits.ablate(*range(HEADS))}):
            changed = model(x).output
        torch.testing.assert_close(changed, model[0].out_proj.bias.expand_as(changed))


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("average", [False, True])
def test_multihead_attention(need_weights: bool, average: bool) -> None:
    model, x = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval(), text()
    with torch.no_grad():
        with edit(model, {"": edits.ablate(1)}):
            output, weights = model(x, x, x, need_weights=need_weights, average_attn_weights=average)
        _, plain = model(x, x, x, average_attn_weights=False)
        edited = plain * torch.tensor([1.0, 0.0, 1.0])[:, None, None]
        value = F.linear(x, model.in_proj_weight[2 * WIDTH :], model.in_proj_bias[2 * WIDTH :])
        value = value.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        expected = model.out_proj((edited @ value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-5)
    if need_weights:
        torch.testing.assert_close(weights, edited.mean(1) if average else edited, atol=1e-6, rtol=1e-5)
    else:
        assert weights is None


@pytest.mark.parametrize("padded", [False, True])
def test_transformer_encoder_leaves_its_fast_path(padded: bool) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 48, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), text()
    given = {"src_key_padding_mask": torch.arange(5) >= torch.tensor([[5], [3]])} if padded else {}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that nested tensors are a prototype
        plain = model(x, **given)
        with edit(model, {"layers.1.self_attn": edits.ablate(0, 1, 2, 3)}), watch(model) as seen:
            model(x, **given)
        assert torch.backends.mha.get_fastpath_enabled()
        assert torch.equal(model(x, **given), plain)
    torch.testing.assert_close(seen.layers[1].sum(-1), torch.zeros(2, 4, 5))


def test_a_compiled_model_is_edited_too() -> None:
    model, x = Small(), text()
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        compiled(x)
        with edit(compiled, {"layers.0": edits.ablate(1)}):
            changed = compiled(x)
    torch.testing.assert_close(changed, by_hand(model, x, {0: [without_heads(1)]}), atol=1e-6, rtol=1e-5)


def test_dropout_of_a_model_in_training() -> None:
    class Dropping(Attention):
        def forward(self, x):
            query, key, value = self.heads(x)
            ones = torch.ones_like(value)
            return F.scaled_dot_product_attention(query, key, ones, dropout_p=0.5).transpose(1, 2).flatten(2)

    model = Small(Dropping)
    with torch.no_grad(), edit(model, {"layers.0": edits.ablate(0)}):
        output = model(torch.randn(64, 20, WIDTH)).unflatten(-1, (HEADS, -1))
    assert torch.equal(output[..., 0, :], torch.zeros_like(output[..., 0, :]))
    assert abs(output[..., 1:, :].mean().item() - 1) < 0.05
    assert output[..., 1:, :].std() > 0.1


def test_an_edit_that_was_never_applied_raises() -> None:
    model = Small(Attention, OwnSoftmax)
    advice = (
        "Let it call F.scaled_dot_product_attention or heedful.scaled_dot_product_attention instead, which both can be "
        "watched."
    )
    for chosen, run in (("layers.1", lambda: model(text())), ("layers.0", lambda: None)):
        with pytest.raises(RuntimeError) as caught, edit(model, {chosen: edits.ablate(0)}):
            run()
        assert str(caught.value) == (
            f"edit() was never applied to '{chosen}' of Small: in this block no attention of these modules ran that "
            f"can be edited. If the model did run: {advice}"
        )


def test_an_exception_is_the_one_that_is_raised() -> None:
    before = F.scaled_dot_product_attention
    with pytest.raises(KeyboardInterrupt), edit(Small(), {"layers.0": edits.ablate(0)}):
        raise KeyboardInterrupt
    assert F.scaled_dot_product_attention is before
    assert torch.backends.mha.get_fastpath_enabled()


def test_bad_arguments() -> None:
    model = Small()
    bad = {
        "model must be an nn.Module, got str.": ("model", {"layers.0": edits.ablate(0)}),
        "edits must map module names to edits, such as {'layers.3': ablate(0)}, got {}.": (model, {}),
        "edits must map module names to edits, such as {'layers.3': ablate(0)}, got ['layers.0'].": (
            model,
            ["layers.0"],
        ),
        "edits: 'h.0' matches no module of Small. Its modules have names such as 'layers', 'layers.0', "
        "'layers.0.project'.": (model, {"h.0": edits.ablate(0)}),
        "edits['layers.0'] must be a function panel -> weights, or several, got [0].": (
            model,
            {"layers.0": [0]},
        ),
        "edits must map names of modules to edits, got 1 as a name.": (model, {1: edits.ablate(0)}),
    }
    for message, (given, chosen) in bad.items():
        with pytest.raises((TypeError, ValueError)) as caught, edit(given, chosen):
            pass
        assert str(caught.value) == message


def test_an_edit_that_does_not_fit_raises_in_the_call() -> None:
    model = Small()
    with pytest.raises(ValueError) as caught, edit(model, {"layers.0": edits.ablate(7)}):
        model(text())
    assert (
        str(caught.value) == "edit does not fit the call (B=2, H=3, L=5, S=5): ablate(7) names a head of 3."
    )
