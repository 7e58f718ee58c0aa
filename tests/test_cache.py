"""The cache of keys and values: what is decoded piece by piece is what the whole sequence gives at once."""

import copy
import pickle

import pytest
import torch

import heedful
from heedful import masks
from heedful.nn import KVCache, MultiHeadAttention
from heedful.positions import (
    Alibi,
    DynamicNTKScaling,
    Learned,
    LinearScaling,
    LongRopeScaling,
    RelativeBias,
    Rotary,
    Sinusoidal,
    YarnScaling,
)

B, L, E, H = 2, 9, 12, 3
POSITIONS = {
    "none": lambda: None,
    "sinusoidal": Sinusoidal,
    "learned": lambda: Learned(L, E),
    "rotary": Rotary,
    "rotary-interleaved-partial": lambda: Rotary(layout="interleaved", rotary_dim=2),
    "rotary-linear": lambda: Rotary(scaling=LinearScaling(3.0)),
    "rotary-yarn": lambda: Rotary(scaling=YarnScaling(4.0, 16)),
    "rotary-dynamic-within": lambda: Rotary(scaling=DynamicNTKScaling(4.0, L)),
    "alibi": lambda: Alibi(H),
    "relative": lambda: RelativeBias(H, num_buckets=8, max_distance=6),
    "relative-causal": lambda: RelativeBias(H, num_buckets=8, max_distance=6, bidirectional=False),
}
CACHES = {
    "growing": KVCache,
    "static": lambda: KVCache(max_length=L + 2),
    "static-full": lambda: KVCache(max_length=L),
    "sliding": lambda: KVCache(window=4),
    "sliding-one": lambda: KVCache(window=1),
    "sliding-wide": lambda: KVCache(window=L + 1),
}
CHUNKS = {
    "tokens": [1] * L,
    "prompt": [5, 1, 1, 1, 1],
    "chunks": [2, 3, 4],
    "at-once": [L],
    "with-none": [4, 0, 5],
}


def module(position=None, **options):
    mha = MultiHeadAttention(E, H, position=position, dtype=torch.float64, **options)
    return mha.double()


def allowed(cache):
    return masks.causal() if cache.window is None else masks.window(cache.window)


def decode(mha, x, cache, chunks, mask=None):
    outputs = [mha(part, mask=mask or masks.causal(), cache=cache).output for part in x.split(chunks, dim=1)]
    return torch.cat(outputs, dim=1)


def check_decoding(mha, cache, chunks):
    """flash-linear-attention#766: positions were off by one, or counted from the rows that were kept."""
    x = torch.randn(B, L, E, dtype=torch.float64)
    whole = mha(x, mask=allowed(cache)).output
    torch.testing.assert_close(decode(mha, x, cache, chunks), whole)
    assert cache.length == L


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("position", POSITIONS)
def test_decoding_is_the_whole_sequence_at_once(position, cache):
    with torch.no_grad():
        check_decoding(module(POSITIONS[position](), qk_norm=True), CACHES[cache](), [4, 3, 1, 1])


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("cache", CACHES)
def test_decoding_does_not_depend_on_the_chunks(cache, chunks, grad):
    with torch.set_grad_enabled(grad):
        check_decoding(module(Rotary()), CACHES[cache](), CHUNKS[chunks])


@pytest.mark.parametrize("cache", ["growing", "static"])
@pytest.mark.parametrize(
    "scaling", [DynamicNTKScaling(3.0, 4), LongRopeScaling((1.0, 2.0), (3.0, 9.0), 4, 2.0)]
)
def test_angles_that_depend_on_the_length_are_those_of_the_whole(scaling, cache):
    """Beyond the original length every new token turns all keys anew, so the last token equals the whole sequence."""
    mha = module(Rotary(scaling=scaling))
    x = torch.randn(B, L, E, dtype=torch.float64)
    cache = CACHES[cache]()
    for stop in range(1, L + 1):
        one = mha(x[:, stop - 1 : stop], mask=masks.causal(), cache=cache).output
        torch.testing.assert_close(one, mha(x[:, :stop], mask=masks.causal()).output[:, -1:])


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("position", [*POSITIONS, "rotary-dynamic"])
def test_batches_of_unequal_length(position, cache):
    """Prompts of 6 and 3 padded on the right, then three tokens each: every item as if it were alone."""
    scaled = {"rotary-dynamic": lambda: Rotary(scaling=DynamicNTKScaling(4.0, 3))}
    mha, cache = module({**POSITIONS, **scaled}[position]()), CACHES[cache]()
    prompts, tokens = torch.randn(B, 6, E, dtype=torch.float64), torch.randn(B, 3, E, dtype=torch.float64)
    lengths = torch.tensor([6, 3])
    outputs = [mha(prompts, mask=masks.causal(), cache=cache).output]
    cache.truncate(lengths)
    for token in tokens.split(1, dim=1):
        outputs.append(mha(token, mask=masks.causal(), cache=cache).output)
    assert cache.length.tolist() == [9, 6]
    for item, length in enumerate(lengths.tolist()):
        alone = KVCache(window=cache.window)
        alone_outputs = [mha(prompts[item : item + 1, :length], mask=masks.causal(), cache=alone).output]
        for token in tokens[item : item + 1].split(1, dim=1):
            alone_outputs.append(mha(token, mask=masks.causal(), cache=alone).output)
        first = slice(0, length)
        if position != "rotary-dynamic":  # there the padding lengthens the prompt
            torch.testing.assert_close(outputs[0][item, first], alone_outputs[0][0])
        for ours, theirs in zip(outputs[1:], alone_outputs[1:], strict=True):
            torch.testing.assert_close(ours[item], theirs[0])


def test_unequal_lengths_in_chunks_and_equal_again():
    mha, cache = module(Rotary()), KVCache()
    x = torch.randn(B, 8, E, dtype=torch.float64)
    mha(x[:, :4], mask=masks.causal(), cache=cache)
    cache.truncate(torch.tensor([4, 2]))
    mha(x[:, 4:], mask=masks.causal(), cache=cache)
    cache.truncate(torch.tensor([5, 5]))
    assert cache.length == 5
    output = mha(x[:, 6:7], mask=masks.causal(), cache=cache).output
    seconds = torch.cat([x[1:, :2], x[1:, 4:7]], dim=1)
    alone = torch.cat([seconds, x[1:, 6:7]], dim=1)
    torch.testing.assert_close(output[1], mha(alone, mask=masks.causal()).output[0, -1:])


@pytest.mark.parametrize("position", ["none", "rotary", "alibi", "relative"])
def test_left_padding_with_relative_positions(position):
    """nnsight PR#673: with padding on the left, real tokens gave other results than alone."""
    mha, cache = module(POSITIONS[position]()), KVCache()
    x = torch.randn(B, 5, E, dtype=torch.float64)
    real = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]).bool()
    prompt = mha(x[:, :4], mask=masks.causal() & masks.padding(real[:, :4]), cache=cache).output
    token = mha(x[:, 4:], mask=masks.causal() & masks.padding(real), cache=cache).output
    alone = mha(x[1:, 2:], mask=masks.causal()).output[0]
    torch.testing.assert_close(torch.cat([prompt[1, 2:], token[1]]), alone)


def test_slots_not_yet_written_are_not_seen():
    """transformers PR#30414: a preallocated cache let its empty slots be attended to. Eight slots, three written."""
    mha, x = module(), torch.randn(B, 3, E, dtype=torch.float64)
    static, growing = KVCache(max_length=8), KVCache()
    output, weights = mha(x, cache=static)
    assert weights.shape == (B, H, 3, 3)
    torch.testing.assert_close(output, mha(x, cache=growing).output, rtol=0, atol=0)
    assert static.keys.shape == (B, H, 3, 4)
    static.truncate(torch.tensor([3, 1]))
    _, weights = mha(x[:, :1], mask=masks.causal(), cache=static)
    assert (weights.full()[1, :, :, 2:] == 0).all()


def test_evicted_tokens_still_count():
    """flash-linear-attention#766: window 3, five tokens before: the sixth stands at 5, and sees two more."""
    mha, cache = module(Rotary()), KVCache(window=3)
    x = torch.randn(B, 6, E, dtype=torch.float64)
    mha(x[:, :5], mask=masks.causal(), cache=cache)
    output, weights = mha(x[:, 5:], mask=masks.causal(), cache=cache)
    assert (cache.length, cache.start, cache.keys.shape[2]) == (6, 3, 3)
    assert weights.shape == (B, H, 1, 3)
    torch.testing.assert_close(output, mha(x, mask=masks.window(3)).output[:, 5:])


def test_a_window_bounds_the_memory():
    mha, cache = module(), KVCache(window=4)
    x = torch.randn(1, 1, E, dtype=torch.float64)
    for _ in range(50):
        mha(x, cache=cache)
    assert cache.length == 50
    assert cache.keys.untyped_storage().nbytes() == 4 * E * 8


def test_mask_tensors_cover_what_was_dropped_too():
    mha, cache = module(), KVCache(window=4)
    x = torch.randn(B, 7, E, dtype=torch.float64)
    real = torch.ones(B, 7, dtype=torch.bool)
    real[1, 5] = False
    mha(x[:, :6], mask=masks.causal(), cache=cache)
    output, weights = mha(x[:, 6:], mask=real, cache=cache)
    keep = masks.window(4) & masks.padding(real)
    torch.testing.assert_close(output, mha(x, mask=keep).output[:, 6:])
    assert (weights.full()[1, :, 0, 2] == 0).all()


def test_the_cache_does_not_decide_causality():
    """Without a causal mask a chunk sees its own later tokens, as in an encoder read piece by piece."""
    mha, cache = module(), KVCache()
    x = torch.randn(B, 5, E, dtype=torch.float64)
    mha(x[:, :2], cache=cache)
    torch.testing.assert_close(mha(x[:, 2:], cache=cache).output, mha(x).output[:, 2:])


def test_queries_may_be_the_last_of_the_new_tokens():
    mha, cache = module(Rotary()), KVCache()
    x = torch.randn(B, 6, E, dtype=torch.float64)
    output, _ = mha(x[:, 5:], x, mask=masks.causal(), cache=cache)
    torch.testing.assert_close(output, mha(x, mask=masks.causal()).output[:, 5:])


@pytest.mark.parametrize("cache", CACHES)
def test_gradients_through_a_cache_are_those_of_the_whole(cache):
    mha, cache = module(Rotary()), CACHES[cache]()
    x = torch.randn(B, L, E, dtype=torch.float64, requires_grad=True)
    wanted = torch.randn(B, L, E, dtype=torch.float64)
    inputs = [x, *mha.parameters()]
    ours = torch.autograd.grad((decode(mha, x, cache, [4, 1, 4]) * wanted).sum(), inputs)
    theirs = torch.autograd.grad((mha(x, mask=allowed(cache)).output * wanted).sum(), inputs)
    torch.testing.assert_close(ours, theirs)


def test_a_static_cache_writes_into_the_same_memory():
    mha, cache = module(), KVCache(max_length=8)
    x = torch.randn(B, 3, E, dtype=torch.float64)
    with torch.no_grad():
        mha(x, cache=cache)
        before = cache.keys.data_ptr()
        mha(x, cache=cache)
    assert cache.keys.data_ptr() == before
    assert cache.keys.untyped_storage().nbytes() == B * 8 * E * 8


def test_earlier_weights_of_a_growing_cache_can_be_asked_later():
    mha, cache = module(), KVCache()
    x = torch.randn(B, 4, E, dtype=torch.float64)
    first = mha(x[:, :3], mask=masks.causal(), cache=cache).weights
    mha(x[:, 3:], mask=masks.causal(), cache=cache)
    torch.testing.assert_close(first.full(), mha(x[:, :3], mask=masks.causal()).weights.full())


def test_what_was_asked_in_the_pass_survives_a_static_cache():
    mha, cache = module(), KVCache(max_length=4)
    x = torch.randn(B, 4, E, dtype=torch.float64)
    with torch.no_grad():
        _, first = mha(x[:, :3], mask=masks.causal(), cache=cache, reduce=heedful.Entropy())
        mha(x[:, 3:], mask=masks.causal(), cache=cache)
        torch.testing.assert_close(first.entropy(), mha(x[:, :3], mask=masks.causal()).weights.entropy())
        with pytest.raises(RuntimeError):
            first.topk(1)


def test_grouped_heads_are_stored_once():
    mha, cache = MultiHeadAttention(E, 6, num_kv_heads=2), KVCache()
    mha(torch.randn(B, 3, E), cache=cache)
    assert cache.keys.shape == cache.values.shape == (B, 2, 3, 2)


def test_update_alone():
    cache = KVCache()
    assert (cache.keys, cache.values, cache.length) == (None, None, 0)
    key, value = torch.randn(B, H, 3, 4), torch.randn(B, H, 3, 5)
    assert all(map(torch.equal, cache.update(key, value), (key, value)))
    keys, values = cache.update(key + 1, value + 1)
    torch.testing.assert_close(keys, torch.cat([key, key + 1], dim=2))
    torch.testing.assert_close(values, torch.cat([value, value + 1], dim=2))
    assert (cache.length, cache.start) == (6, 0)
    cache.reset()
    assert (cache.keys, cache.length) == (None, 0)


def test_truncate_forgets():
    cache = KVCache()
    key = torch.randn(B, H, 5, 4)
    cache.update(key, key)
    cache.truncate(2)
    torch.testing.assert_close(cache.update(key, key)[0], torch.cat([key[:, :, :2], key], dim=2))
    cache.truncate(torch.tensor([3, 1]))
    keys, _ = cache.update(key[:, :, :1] + 9, key[:, :, :1])
    torch.testing.assert_close(keys[0, :, 3], key[0, :, 0] + 9)
    torch.testing.assert_close(keys[1, :, 1], key[1, :, 0] + 9)
    assert cache.length.tolist() == [4, 2]


def test_copies_and_pickles_go_their_own_way():
    for make in CACHES.values():
        cache, key = make(), torch.randn(B, H, 3, 4)
        cache.update(key, key)
        for twin in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
            with torch.no_grad():
                twin.update(key[:, :, :1] + 5, key[:, :, :1])
            assert (cache.length, twin.length) == (3, 4)
            torch.testing.assert_close(cache.keys, key, rtol=0, atol=0)


def test_repr():
    assert repr(KVCache()) == "KVCache(), length 0"
    cache = KVCache(max_length=8)
    cache.update(torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 3, 4))
    cache.truncate(torch.tensor([3, 2]))
    assert repr(cache) == "KVCache(max_length=8), length [3, 2]"
    assert repr(KVCache(window=4)) == "KVCache(window=4), length 0"


def filled(**options):
    cache = KVCache(**options)
    cache.update(torch.zeros(B, H, 6, 4), torch.zeros(B, H, 6, 5))
    return cache


def slid():
    cache = filled(window=3)
    cache.update(torch.zeros(B, H, 1, 4), torch.zeros(B, H, 1, 5))
    return cache


def update(key, value, **options):
    cache = filled(**options)
    return cache, lambda: cache.update(torch.zeros(key), torch.zeros(value))


def truncated(cache, length):
    return cache, lambda: cache.truncate(length)


def attended(cache, *shapes, **options):
    mha = MultiHeadAttention(E, H, head_dim=4, vdim=E, position=Rotary())
    return cache, lambda: mha(*(torch.zeros(shape) for shape in shapes), cache=cache, **options)


def attended_cache():
    cache = KVCache()
    MultiHeadAttention(E, H)(torch.zeros(B, 3, E), cache=cache)
    return cache


MESSAGES = {
    "overflow": (
        lambda: update((B, H, 3, 4), (B, H, 3, 5), max_length=8),
        ValueError,
        "KVCache(max_length=8) holds 6 tokens and cannot take 3 more. "
        "Make it longer, or begin anew with cache.reset().",
    ),
    "value-behind": (
        lambda: update((B, H, 3, 4), (B, H, 2, 5)),
        ValueError,
        "key and value must be (batch, heads, length, size) and differ in the last size only, "
        "got (2, 3, 3, 4) and (2, 3, 2, 5).",
    ),
    "other-batch": (
        lambda: update((3, H, 1, 4), (3, H, 1, 5)),
        ValueError,
        "key must be (2, 3, any, 4) like the cache, got (3, 3, 1, 4). "
        "Each layer needs a cache of its own; cache.reset() begins anew.",
    ),
    "other-dtype": (
        lambda: (
            cache := filled(),
            lambda: cache.update(torch.zeros(B, H, 1, 4).half(), torch.zeros(B, H, 1, 5)),
        ),
        ValueError,
        "key must be torch.float32 on cpu like the cache, got torch.float16 on cpu. Begin anew with cache.reset().",
    ),
    "too-long": (
        lambda: truncated(filled(), 7),
        ValueError,
        "length must be from 0, the earliest that this cache can go back to, to 6, what it has seen; got 7.",
    ),
    "negative": (
        lambda: truncated(filled(), torch.tensor([3, -1])),
        ValueError,
        "length must be from 0, the earliest that this cache can go back to, to 6, what it has seen; got [3, -1].",
    ),
    "dropped": (
        lambda: truncated(slid(), 5),
        ValueError,
        "length must be from 6, the earliest that this cache can go back to, to 7, what it has seen; got 5.",
    ),
    "not-a-length": (
        lambda: truncated(filled(), 2.0),
        TypeError,
        "length must be an int or an integer tensor (batch,), got float.",
    ),
    "wrong-count": (
        lambda: truncated(filled(), torch.tensor([3, 1, 2])),
        ValueError,
        "length must be an int or an integer tensor (batch,) with batch = 2, got int64 (3,).",
    ),
    "query-beyond": (
        lambda: attended(attended_cache(), (B, 4, E), (B, 1, E)),
        ValueError,
        "query must not be longer than the tokens added to the cache, got 4 and 1: "
        "the queries are the last of the new tokens.",
    ),
    "bad-mask": (
        lambda: attended(attended_cache(), (B, 1, E), mask=torch.ones(B, 1, 1, 9, dtype=torch.bool)),
        ValueError,
        "mask must be (L, S) or (B, H, L, S), or 1 where it repeats, with B=2, H=3, L=1, S=4; got (2, 1, 1, 9).",
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_bad_input_says_what_to_do_and_leaves_the_cache_as_it_was(name):
    make, error, message = MESSAGES[name]
    cache, call = make()
    length, start, keys, values = cache.length, cache.start, cache.keys.clone(), cache.values.clone()
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message
    assert (cache.length, cache.start) == (length, start)
    torch.testing.assert_close((cache.keys, cache.values), (keys, values), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KVCache(max_length=0), "max_length must be an integer of at least 1, got 0."),
        (lambda: KVCache(window="4"), "window must be an integer of at least 1, got '4'."),
        (lambda: KVCache(window=0), "window must be an integer of at least 1, got 0."),
        (
            lambda: KVCache(max_length=8, window=3),
            "max_length and window cannot both be given, got 8 and 3. A window bounds the memory by itself.",
        ),
        (
            lambda: KVCache().truncate(torch.tensor([1, 2])),
            "length cannot be given per item to an empty cache. Truncate it after the prompt.",
        ),
        (
            lambda: KVCache(max_length=2).update(torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 3, 4)),
            "KVCache(max_length=2) holds 0 tokens and cannot take 3 more. "
            "Make it longer, or begin anew with cache.reset().",
        ),
    ],
)
def test_an_impossible_cache_is_refused(make, message):
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value) == message


def test_a_size_without_its_name_is_refused():
    with pytest.raises(TypeError) as caught:
        KVCache(5)
    assert str(caught.value) == (
        "KVCache takes its arguments by name, got 5 without one. Write KVCache(max_length=...) or KVCache(window=...)."
    )
