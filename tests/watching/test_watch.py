"""`heedful.watch` leaves everything as it was, records what was asked, and names what it could not see."""

import threading
import warnings
from contextlib import suppress

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heedful
from heedful import _listeners
from heedful.watching import AttentionNotSeen, NotSeen, watch
from watched_models import Attention, OwnSoftmax, Small, text


def assert_weights(weights, expected) -> None:
    torch.testing.assert_close(weights.double(), expected, atol=1e-6, rtol=1e-5)


def assert_nothing_is_left(before: tuple) -> None:
    assert (F.scaled_dot_product_attention, F.multi_head_attention_forward) == before
    assert _listeners.listeners() == ()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.fixture
def functions() -> tuple:
    return F.scaled_dot_product_attention, F.multi_head_attention_forward


# Leaves things as they were


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_nothing_behind_and_keeps_what_was_seen(functions: tuple, error) -> None:
    class Failing(Attention):
        def forward(self, x):
            raise error("in the middle")

    model = Small(Attention, Failing)
    with pytest.raises(error, match="in the middle"), watch(model) as seen:
        model(text())
    assert_nothing_is_left(functions)
    assert list(seen) == ["layers.0"]
    assert_weights(seen["layers.0"].full(), model.layers[0].weights(text()))


def test_watches_nest() -> None:
    model, other = Small(), Small(Attention)
    with torch.no_grad(), watch(model) as outer:
        model(text())
        with watch(model, heedful.Entropy(), layers=1) as inner, watch(other) as of_other:
            model(text())
            other(text())
        model(text())
    assert [len(calls) for calls in outer.values()] == [3, 3, 3]
    assert [len(calls) for calls in inner.values()] == [1]
    assert [len(calls) for calls in of_other.values()] == [1]
    assert torch.equal(inner.layers[1].entropy(), outer.layers[1][1].entropy())


def test_a_watch_hears_its_own_thread_only(functions: tuple) -> None:
    """The switch of a whole class leaks between threads (openai/whisper#2845); this one is of a thread."""
    model, seen, ready, done = Small(), {}, threading.Barrier(2), threading.Barrier(2)

    def work(number: int) -> None:
        x = text() * (number + 1)
        with torch.no_grad(), watch(model) as mine:
            ready.wait(30)
            for _ in range(number + 1):
                model(x)
            done.wait(30)
        seen[number] = mine

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [len(seen[number].layers[0]) for number in range(2)] == [1, 2]
    assert_weights(seen[1].layers[2][1].full(), model.weights(text() * 2)[2])
    assert_nothing_is_left(functions)


def test_a_call_in_another_thread_runs_as_ever_and_is_not_seen() -> None:
    model, output = Small(), []
    with torch.no_grad(), watch(model) as seen:
        thread = threading.Thread(target=lambda: output.append(model(text()).detach()))
        thread.start()
        thread.join(60)
    torch.testing.assert_close(output[0], model(text()).detach())  # threads may split the work in another way
    with pytest.raises(NotSeen) as caught:
        seen.layers[0]
    assert str(caught.value) == (
        "layers[0] is not there. Nothing of Small was seen. Call the model itself inside the block, in the thread that "
        "opened it."
    )


def test_a_function_that_somebody_else_replaced_meanwhile_stays_replaced(functions: tuple) -> None:
    def theirs(*args, **kwargs):
        return functions[0](*args, **kwargs)

    try:
        with watch(Small()):
            F.scaled_dot_product_attention = theirs
        assert F.scaled_dot_product_attention is theirs
    finally:
        F.scaled_dot_product_attention = functions[0]
    assert_nothing_is_left(functions)


def test_no_hook_and_no_attribute_stays_on_the_model() -> None:
    model = Small()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    with watch(model):
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        model(text())
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before


# What is kept


def test_layers_by_name_pattern_and_number() -> None:
    model = Small()
    expected = {
        "layers.1": ["layers.1"],
        "*.1": ["layers.1"],
        "layers": ["layers.0", "layers.1", "layers.2"],
        2: ["layers.2"],
        ("*.0", 2): ["layers.0", "layers.2"],
    }
    for layers, names in expected.items():
        with torch.no_grad(), watch(model, layers=layers) as seen:
            model(text())
        assert list(seen) == names
        assert [calls.name for calls in seen.layers] == names
    assert seen.layers[2].name == seen.layers[-1].name == "layers.2"
    with pytest.raises(NotSeen) as caught:
        seen.layers[1]
    assert str(caught.value) == "'layers.1' was not watched: layers= left it out."
    with pytest.raises(NotSeen) as caught:
        seen.layers[3]
    assert str(caught.value) == (
        "layers[3] is not there. Small: 2 calls of 2 attention modules: 'layers.0', 'layers.2'."
    )


def test_with_reductions_only_the_answers_are_kept() -> None:
    model = Small()
    with torch.no_grad(), watch(model, heedful.Entropy(), heedful.TopK(3)) as seen:
        model(text())
    calls = seen.layers[1]
    expected = model.weights(text())[1]
    assert_weights(calls.entropy(), torch.special.entr(expected).sum(-1))
    assert_weights(calls.topk(2).values, expected.topk(2).values)
    assert calls.shape == expected.shape
    assert all(
        x.device.type == "meta" for x in vars(calls.calls[0]._call).values() if isinstance(x, torch.Tensor)
    )
    assert repr(calls.calls[0]) == "Answers(Entropy(), TopK(k=3); of weights (2, 3, 5, 5))"
    with pytest.raises(RuntimeError) as caught:
        calls.received()
    assert str(caught.value) == (
        "watch() was given reductions and kept their answers only: Entropy(), TopK(k=3). To ask for Received("
        "how='sum', per='head', by_value_norm=False) too, name it in watch(), or watch without reductions: that keeps "
        "queries and keys, and answers anything later."
    )
    for index in ((0,), (..., -1, slice(None)), (torch.ones(2, 3, 5, 5, dtype=torch.bool),)):
        with pytest.raises(RuntimeError) as caught:
            calls[index]
        assert str(caught.value) == (
            "watch() was given reductions and kept their answers only: Entropy(), TopK(k=3). Ask first and index the "
            "answer, such as entropy()[0], or watch without reductions to have the rows."
        )


def test_a_change_in_place_after_the_call_is_noticed() -> None:
    class Changing(Attention):
        def forward(self, x):
            query, key, value = (part.clone() for part in self.heads(x))
            F.scaled_dot_product_attention(query, key, value)
            key.zero_()
            return x

    model = Small(Changing)
    with torch.no_grad(), watch(model) as seen:
        model(text())
    with pytest.raises(RuntimeError, match="key was changed in place after the call"):
        seen.layers[0].entropy()


def test_a_cache_that_is_written_to_is_copied() -> None:
    """The keys of a static cache are written to in place at every step, and are seen as they were."""

    class Cached(Attention):
        def __init__(self):
            super().__init__()
            self.keys = torch.zeros(2, 3, 4, 8)

        def forward(self, x):
            step = x.shape[1] - 1
            query, key, _ = self.heads(x)
            self.keys[:, :, step] = key[:, :, -1]
            self.queries = [*getattr(self, "queries", []), query[:, :, -1:]]
            keep = torch.arange(4) <= step
            F.scaled_dot_product_attention(
                query[:, :, -1:], self.keys, torch.ones(2, 3, 4, 8), attn_mask=keep[None]
            )
            return x

    for mode in (torch.no_grad, torch.inference_mode):
        model = Small(Cached)
        with mode(), watch(model) as seen:
            for length in range(1, 5):
                model(text()[:, :length])
        layer = model.layers[0]
        for step, (weights, query) in enumerate(zip(seen.layers[0], layer.queries, strict=True)):
            scores = query.double() @ layer.keys.double().mT * 8**-0.5
            scores[..., step + 1 :] = -torch.inf
            assert_weights(weights.full(), torch.softmax(scores, -1))


def test_a_growing_cache_is_kept_once() -> None:
    class Cached(Attention):
        keys = values = None

        def forward(self, x):
            query, key, value = self.heads(x)
            self.keys = key if self.keys is None else torch.cat([self.keys, key], 2)
            self.values = value if self.values is None else torch.cat([self.values, value], 2)
            F.scaled_dot_product_attention(query, self.keys, self.values)
            return x

    model = Small(Cached)
    with torch.no_grad(), watch(model) as seen:
        for _ in range(6):
            model(text()[:, :1])
    calls = seen.layers[0].calls
    assert [weights.shape[-1] for weights in calls] == [1, 2, 3, 4, 5, 6]
    assert len({weights._call.key.untyped_storage().data_ptr() for weights in calls}) == 1
    assert len({weights._call.value.untyped_storage().data_ptr() for weights in calls}) == 1


def test_watching_builds_no_matrix() -> None:
    """Neither while the model runs nor when it is asked: the largest tensor is far below L x S."""

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            for x in result if isinstance(result, tuple) else (result,):
                if isinstance(x, torch.Tensor):
                    self.numbers = max(self.numbers, x.untyped_storage().nbytes() // 4)
            return result

    length = 1600
    model, x = Small(Attention), torch.randn(1, length, 24)
    for reductions in ((), (heedful.Entropy(), heedful.Received(), heedful.TopK(8))):
        with Largest() as largest, torch.no_grad(), watch(model, *reductions) as seen:
            model(x)
            seen.layers[0].entropy()
            seen.layers[0].received()
            seen.layers[0].topk(8)
        assert largest.numbers < length * length / 2


# What is not seen


def test_own_softmax_is_named_beside_what_was_seen() -> None:
    model = Small(Attention, OwnSoftmax, OwnSoftmax)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.no_grad(), watch(model) as seen:
            model(text())
    assert list(seen) == ["layers.0"]
    assert seen.missed == dict.fromkeys(("layers.1", "layers.2"), "it takes a softmax of its own")
    (warning,) = caught
    assert warning.category is AttentionNotSeen
    assert warning.filename == __file__
    assert str(warning.message) == (
        "watch() could not see the attention of 2 modules of Small: 'layers.1', 'layers.2'. Of OwnSoftmax: it takes a "
        "softmax of its own. Let it call F.scaled_dot_product_attention or heedful.scaled_dot_product_attention "
        "instead, which both can be watched."
    )
    with pytest.raises(NotSeen) as error:
        seen["layers.1"]
    assert str(error.value) == "'layers.1' was not seen: it takes a softmax of its own."


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_a_model_of_which_nothing_is_seen_raises(mode, functions: tuple) -> None:
    model = Small(OwnSoftmax)
    with pytest.raises(RuntimeError) as caught, mode(), watch(model):
        model(text())
    assert str(caught.value) == (
        "watch() could not see the attention of 1 module of Small: 'layers.0'. Of OwnSoftmax: it takes a softmax of "
        "its own. Let it call F.scaled_dot_product_attention or heedful.scaled_dot_product_attention instead, which "
        "both can be watched."
    )
    assert_nothing_is_left(functions)


def test_a_softmax_that_weighs_nothing_is_no_attention() -> None:
    class Classifier(nn.Module):
        def forward(self, x):
            return torch.softmax(x, -1) @ torch.ones(3, 1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.classifier = Attention(), Classifier()

        def forward(self, x):
            found = self.attention(x)
            return self.classifier(found[..., :3]), torch.softmax(found, 1)

    model = Model()
    with torch.no_grad(), watch(model) as seen, warnings.catch_warnings():
        warnings.simplefilter("error")
        with suppress(AttentionNotSeen):
            model(text())
    assert list(seen) == ["attention"]


def test_modules_left_out_are_not_complained_about() -> None:
    model = Small(Attention, OwnSoftmax)
    with torch.no_grad(), watch(model, layers="layers.0") as seen:
        model(text())
    assert seen.missed == {}


# Bad input


def test_a_number_beyond_the_layers_is_an_error_once_they_are_known() -> None:
    model = Small()
    with pytest.raises(ValueError, match="layers names no attention module"), watch(model, layers=[]):
        pass
    with torch.no_grad(), pytest.raises(ValueError) as caught, watch(model, layers=[7]) as seen:
        model(text())
    assert str(caught.value) == (
        "layers 7: only 0 to 2 are there, as Small ran attention in 3 modules in this block. "
        "Numbers follow the order of the first calls."
    )
    assert repr(seen) == "Seen(Nothing of Small was seen: layers= left out all 3 attention modules that ran.)"


def test_a_number_beyond_the_layers_is_a_warning_where_others_were_seen() -> None:
    model = Small()
    with (
        torch.no_grad(),
        pytest.warns(AttentionNotSeen, match=r"layers 3, 7: only 0 to 2 are there"),
        watch(model, layers=[0, 3, 7, "*.1"]) as seen,
    ):
        model(text())
    assert list(seen) == ["layers.0", "layers.1"]


def test_numbers_mean_nothing_where_the_model_did_not_run() -> None:
    with watch(Small(), layers=7) as seen:
        pass
    assert "Call the model itself inside the block" in repr(seen)


def test_bad_arguments() -> None:
    model = Small()
    bad = {
        "model must be an nn.Module, got list.": lambda: watch([model]),
        "reduce must hold reductions such as heedful.Entropy() or heedful.TopK(8), got <class 'heedful.reductions."
        "_rows.Entropy'>. Write Entropy().": lambda: watch(model, heedful.Entropy),
        "layers must be module names, patterns such as '*.5.*', or layer numbers; got 1.5.": lambda: watch(
            model, layers=1.5
        ),
        "layers: numbers count from 0, in the order of the first calls; got -1. How many there are is not known "
        "before the model runs.": lambda: watch(model, layers=-1),
        "layers: 'encoder' matches no module of Small. Its modules have names such as 'layers', 'layers.0', "
        "'layers.0.project'.": lambda: watch(model, layers=["layers.0", "encoder"]),
    }
    for message, opened in bad.items():
        with pytest.raises((TypeError, ValueError)) as caught, opened():
            pass
        assert str(caught.value) == message
