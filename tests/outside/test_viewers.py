"""bertviz and CircuitsVis take what was watched: every number in their pages is the watched weight.

bertviz 1.4.1 and circuitsvis 1.43.3, installed without their dependencies beside ipython and importlib-metadata.
"""

import json
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny_models
from heedful.watching import Seen, watch

needs_bertviz = pytest.mark.skipif(
    find_spec("bertviz") is None or find_spec("IPython") is None, reason="needs bertviz and ipython"
)
needs_circuitsvis = pytest.mark.skipif(
    find_spec("circuitsvis") is None or find_spec("importlib_metadata") is None,
    reason="needs circuitsvis and importlib-metadata",
)


def watched(name: str) -> Seen:
    """One text of 9 tokens; one answer of 5, where the model writes one."""
    pytest.importorskip("transformers")
    model = tiny_models.make(name)
    given = {key: x[:1] for key, x in tiny_models.inputs(name).items()}
    with torch.no_grad(), watch(model) as seen:
        model(**given)
    return seen


def value_of(page: str, name: str) -> Any:
    """The first value of that name in the JSON inside a page."""
    start = page.index(f'"{name}": ') + len(name) + 4
    return json.JSONDecoder().raw_decode(page, start)[0]


def assert_holds(found: Any, expected: Tensor) -> None:
    torch.testing.assert_close(torch.tensor(found), expected, atol=1e-6, rtol=0)


WORDS, ANSWER = [f"w{i}" for i in range(9)], [f"a{i}" for i in range(5)]


@needs_bertviz
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("view", ["head_view", "model_view"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_bertviz_shows_the_watched_weights(name: str, view: str) -> None:
    import bertviz

    attention = watched(name).to_tuple()
    page = getattr(bertviz, view)(attention, WORDS, html_action="return").data
    assert value_of(page, "left_text") == WORDS
    assert_holds(value_of(page, "attn"), torch.cat(attention))


@needs_bertviz
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("view", ["head_view", "model_view"])
def test_bertviz_shows_an_encoder_and_its_decoder(view: str) -> None:
    import bertviz

    seen = watched("bart")
    kinds = {
        "encoder_attention": seen.to_tuple("*encoder.layers.*.self_attn"),
        "decoder_attention": seen.to_tuple("*decoder.layers.*.self_attn"),
        "cross_attention": seen.to_tuple("*.encoder_attn"),
    }
    assert [tuple(layers[0].shape[1:]) for layers in kinds.values()] == [(4, 9, 9), (4, 5, 5), (4, 5, 9)]
    page = getattr(bertviz, view)(
        **kinds, encoder_tokens=WORDS, decoder_tokens=ANSWER, html_action="return"
    ).data
    cross = page[page.index('"name": "Cross"') :]
    assert_holds(value_of(cross, "attn"), torch.cat(kinds["cross_attention"]))


@needs_circuitsvis
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_circuitsvis_shows_the_watched_weights(name: str) -> None:
    from circuitsvis.attention import attention_heads, attention_patterns

    for attention in watched(name).to_tuple():
        for page in (
            str(attention_patterns(tokens=WORDS, attention=attention[0])),
            str(attention_heads(attention=attention[0], tokens=WORDS)),
        ):
            assert value_of(page, "tokens") == WORDS
            assert_holds(value_of(page, "attention"), attention[0])
