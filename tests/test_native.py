"""The native kernel where it has ways of its own: levels, ranges, decoding, threads, bits, and what it refuses."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import heedful
from heedful import (
    Alibi,
    ByKey,
    DistanceProfile,
    Entropy,
    KeyColumns,
    LogSumExp,
    MaxLogit,
    MeanDistance,
    Pooled,
    QueryRows,
    Received,
    Reduction,
    TopK,
    backends,
    masks,
)
from heedful._call import Call, make_call
from heedful.backends import native
from heedful.backends.native import _compile, _library
from heedful.backends.native._ranges import ranges, split
from heedful.reductions import TransposedProduct

if native.info().reason is not None:
    pytest.skip(f"native: {native.info().reason}", allow_module_level=True)

QUESTIONS = (
    Entropy(),
    LogSumExp(),
    MaxLogit(),
    MeanDistance(),
    Received(),
    Received("max"),
    Received("mean"),
    TopK(5),
    DistanceProfile(),
    Pooled(5, 7),
    Pooled(5, 7, "max"),
    Pooled(3, 4, by_value_norm=True),
    Pooled(3, 4, "max", by_value_norm=True),
    QueryRows((0,)),
)


def questions_about(call: Call) -> tuple[Reduction, ...]:
    """QUESTIONS, and those that must know how many keys there are."""
    B, S = call.query.shape[0], call.key.shape[2]
    passages = ByKey(torch.arange(S) * 4 // S - 1)
    per_item = ByKey(torch.randint(0, 3, (B, S), generator=torch.Generator().manual_seed(1)))
    y = torch.ones(*call.query.shape[:3], 5, dtype=call.dtype).cumsum(2)
    return (*QUESTIONS, passages, per_item, KeyColumns((S - 1, 0)), TransposedProduct(y))


def tensors(B=2, H=6, G=3, L=70, S=90, E=20, Ev=12, dtype=torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(size).to(dtype) for size in ((B, H, L, E), (B, G, S, E), (B, G, S, Ev)))


def call_of(query: Tensor, key: Tensor, value: Tensor, mask=None, bias=None, start=None, **more):
    given = {"scale": None, "softcap": None, "sinks": None, "dropout_p": 0.0, "edit": None} | more
    return make_call(query, key, value, mask, bias, start, **given)


@torch.no_grad()
def ask(call, questions=None) -> list[Tensor]:
    """The output and every answer, flat."""
    result = backends.run(native, call, questions_about(call) if questions is None else questions)
    flat = [result.output]
    for answer in result.answers:
        flat += answer if isinstance(answer, tuple) else [answer]
    return flat


@torch.no_grad()
def truth(call, questions=None) -> list[Tensor]:
    """The same from the reference in float64."""
    wide = call_of(
        *(x.double() for x in (call.query, call.key, call.value)), call.mask, call.bias, call.rows.start,
        scale=call.scale, softcap=call.softcap, sinks=call.sinks,
    )  # fmt: skip
    result = backends.run(
        backends.load("reference"), wide, questions_about(wide) if questions is None else questions
    )
    flat = [result.output]
    for answer in result.answers:
        flat += answer if isinstance(answer, tuple) else [answer]
    return flat


def assert_true(call, rtol: float = 2e-6) -> None:
    for place, (found, wanted) in enumerate(zip(ask(call), truth(call), strict=True)):
        if found.dtype == torch.int64:
            continue  # equal weights leave the choice of a key free
        size = max(1.0, float(wanted[wanted.isfinite()].abs().max())) if wanted.isfinite().any() else 1.0
        torch.testing.assert_close(
            found.double(),
            wanted.double(),
            rtol=0,
            atol=rtol * size,
            msg=lambda text, at=place: f"answer {at}: {text}",
        )


# Levels


def test_info_names_a_level_that_was_built() -> None:
    found = native.info()
    assert found.level in found.built
    assert found.compiler.startswith(("GCC ", "Clang "))


@pytest.mark.parametrize("level", _library.built())
def test_every_level_that_runs_here_is_true(level: str, tmp_path: Path) -> None:
    if not _library.library().functions.heedful_can_run(level.encode()):
        pytest.skip(f"this machine does not run {level}")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import torch, test_native as t\n"
        "from heedful import masks\n"
        "torch.manual_seed(1)\n"
        "t.assert_true(t.call_of(*t.tensors(), masks.causal(), softcap=5.0))\n"
        "t.assert_true(t.call_of(*t.tensors(L=1), masks.window(30)))\n"
        "print(t.native.info().level)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).parent)],
        env=os.environ | {_library.LEVEL_VARIABLE: level},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.strip() == level, done.stderr


def test_an_unknown_level_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    runnable = [x for x in _library.built() if _library.library().functions.heedful_can_run(x.encode())]
    monkeypatch.setenv(_library.LEVEL_VARIABLE, "z80")
    with pytest.raises(_library.Unavailable) as caught:
        _library.library.__wrapped__()
    assert str(caught.value) == (
        f"HEEDFUL_NATIVE_LEVEL=z80 is not among the levels that run here: {', '.join(runnable)}"
    )


def test_without_a_library_the_reason_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(_library.FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(_library.Unavailable) as caught:
        _library.library.__wrapped__()
    assert str(caught.value) == "the native kernel was not compiled when heedful was installed"


def test_structs_are_those_of_the_library() -> None:
    sizes = (ctypes.c_int64 * 2)()
    _library.library().functions.heedful_sizes(sizes)
    assert list(sizes) == [ctypes.sizeof(_library.NativeCall), ctypes.sizeof(_library.NativeGradient)]


def test_a_missing_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(_compile.CannotCompile) as caught:
        _compile.compile_all(tmp_path)
    assert "no-such-compiler" in str(caught.value)
    assert "\n" not in str(caught.value)


# Truth


@pytest.mark.parametrize("L", [1, 2, 13, 97, 200])
@pytest.mark.parametrize("S", [1, 7, 129, 515])
def test_lengths_around_tiles_chunks_and_the_path_for_few_queries(L: int, S: int) -> None:
    assert_true(call_of(*tensors(L=L, S=S)))
    assert_true(call_of(*tensors(L=L, S=S), masks.causal()))


@pytest.mark.parametrize("E", [1, 15, 16, 17, 64, 130])
def test_widths_around_vectors(E: int) -> None:
    assert_true(call_of(*tensors(E=E, Ev=131 - E), masks.window(20, 3)))


@pytest.mark.parametrize("L", [1, 40])
def test_all_scores_equal(L: int) -> None:
    query, key, value = tensors(L=L, S=600)
    call = call_of(query * 0, key, value)
    assert_true(call)
    answers = backends.run(native, call, (TopK(9),)).answers[0]
    assert answers.indices.unique().tolist() == list(range(9))


@pytest.mark.parametrize("L", [1, 40])
def test_more_equal_scores_than_candidates_fit(L: int) -> None:
    query, key, value = tensors(L=L, S=3000)
    key = torch.where(torch.arange(3000)[:, None] % 3 == 0, key[..., :1, :], key[..., 1:2, :])
    values, keys = backends.run(native, call_of(query, key, value), (TopK(40),)).answers[0]
    assert torch.equal(values, values.sort(-1, descending=True).values)
    assert all(len(row.unique()) == 40 for row in keys.flatten(0, -2))
    assert bool((keys[..., 1:] > keys[..., :-1]).all())  # ties go to the lowest keys, and all 40 are ties


@pytest.mark.parametrize("k", [1, 8, 33, 70, 90])
def test_every_k(k: int) -> None:
    call = call_of(*tensors(), masks.causal())
    values, keys = backends.run(native, call, (TopK(k),)).answers[0]
    dense = heedful.scaled_dot_product_attention(
        *(x.double() for x in (call.query, call.key, call.value)), masks.causal(), backend="reference"
    )[1].full()
    torch.testing.assert_close(values.double(), dense.topk(k, -1).values, rtol=0, atol=1e-6)
    seen = (dense > 0).sum(-1, keepdim=True).clamp(max=k)
    assert torch.equal((keys >= 0).sum(-1, keepdim=True), seen)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("L", [1, 50])
def test_half_precision_is_float32_inside(dtype: torch.dtype, L: int) -> None:
    call = call_of(*tensors(L=L, dtype=dtype), masks.causal())
    found, wanted = ask(call), truth(call)
    assert found[0].dtype == dtype
    assert torch.equal(found[0], found[0].to(dtype))
    for answer, exact in zip(found[1:4], wanted[1:4], strict=True):
        assert answer.dtype == torch.float32
        torch.testing.assert_close(answer.double(), exact.double(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("L", [2, 40])
def test_every_half_number_goes_in_and_out(dtype: torch.dtype, L: int) -> None:
    """One key per query: the output is the value row itself, subnormal numbers included."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    numbers = numbers[numbers.isfinite()]
    numbers = torch.nn.functional.pad(numbers, (0, -len(numbers) % L)).view(1, 1, L, -1)
    query = torch.zeros(1, 1, L, 3, dtype=dtype)
    output = backends.run(native, call_of(query, query, numbers, masks.window(1))).output
    assert torch.equal(output, numbers)


@pytest.mark.parametrize("L", [1, 50])
@pytest.mark.parametrize("E", [7, 8])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("wider", [0, 1, 2])
def test_pairs_of_bfloat16_wherever_rows_begin(L: int, E: int, first: int, wider: int) -> None:
    """Rows that begin at odd places, or stand an odd number of entries apart, give the bits that a copy gives."""
    whole = tensors(L=L, E=first + E + wider, Ev=first + E + wider, dtype=torch.bfloat16)
    cut = [x[..., first : first + E].requires_grad_() for x in whole]
    copies = [x.detach().clone().requires_grad_() for x in cut]
    (found, _), (wanted, _) = (
        heedful.scaled_dot_product_attention(*x, masks.causal(), backend="native") for x in (cut, copies)
    )
    assert torch.equal(found, wanted)
    gradients = (torch.autograd.grad(x.square().sum(), y) for x, y in ((found, cut), (wanted, copies)))
    for mine, theirs in zip(*gradients, strict=True):
        assert torch.equal(mine, theirs)


# Ranges


RULES = {
    "window": lambda: masks.window(5, 2),
    "lengths": lambda: masks.lengths(torch.tensor([90, 31])),
    "padding left": lambda: masks.padding(torch.arange(90) >= torch.tensor([[0], [17]])),
    "documents": lambda: masks.documents(torch.arange(90) // 13),
    "documents and causal": lambda: masks.documents(torch.arange(90) // 13) & masks.causal(),
    "prefix or causal": lambda: masks.prefix(40) | masks.causal(),
}
NOT_RULES = {
    "holes in the padding": lambda: masks.padding(torch.rand(2, 90) < 0.5),
    "a document in two parts": lambda: masks.documents(torch.arange(90) // 13 % 3),
    "sink and window": lambda: masks.prefix(2) | masks.window(5),
    "not": lambda: ~masks.window(5),
    "dense": lambda: masks.dense(torch.rand(70, 90) < 0.5),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_is_one_range_per_query_is_found(name: str) -> None:
    call = call_of(*tensors(), RULES[name]())
    found = ranges(call.mask, call.rows)
    keys = torch.arange(90)
    dense = (keys >= found.first[..., None]) & (keys < found.last[..., None])
    wanted = call.mask.to_dense(70, 90).expand(2, 1, 70, 90)[:, 0]
    assert torch.equal(dense.expand_as(wanted), wanted)
    assert split(call.mask, call.rows)[1] is None
    assert_true(call)


@pytest.mark.parametrize("name", NOT_RULES)
@pytest.mark.parametrize("L", [1, 70])
def test_other_rules_are_asked_block_by_block(name: str, L: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "dense" and L == 1:
        pytest.skip("the mask is for 70 queries")
    monkeypatch.setattr("heedful.backends.native._visible.ELEMENTS", 4000)
    call = call_of(*tensors(L=L), NOT_RULES[name]())
    assert ranges(call.mask, call.rows) is None
    assert_true(call)
    assert_true(call_of(*tensors(L=L), call.mask & masks.causal()))


def test_biases_that_must_be_made_are_made_for_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.backends.native._visible.ELEMENTS", 4000)
    relative = heedful.RelativeBias(6)
    assert_true(call_of(*tensors(), masks.causal(), bias=relative), rtol=4e-6)
    assert_true(
        call_of(*tensors(), masks.causal(), bias=(relative, Alibi(6), torch.randn(70, 90))), rtol=4e-6
    )


def test_alibi_needs_no_table() -> None:
    assert_true(call_of(*tensors(), masks.causal(), bias=Alibi(6), start=torch.tensor([3, 20])), rtol=4e-6)


def test_alibi_for_other_heads_says_so() -> None:
    with pytest.raises(ValueError) as caught:
        ask(call_of(*tensors(), bias=Alibi(5)))
    assert str(caught.value) == "attn_bias: Alibi is for 5 heads, the query has 6. Write Alibi(6)."


# Nobody's NaN


@pytest.mark.parametrize("L", [1, 70])
def test_a_masked_nan_reaches_nobody(L: int) -> None:
    query, key, value = tensors(L=L)
    keep = torch.rand(1, 1, L, 90) < 0.7
    keep[..., [3, 50]] = False
    clean = ask(call_of(query, key, value, masks.dense(keep)))
    key[:, :, 3], value[:, :, 50] = torch.nan, torch.inf
    for before, after in zip(clean, ask(call_of(query, key, value, masks.dense(keep))), strict=True):
        assert torch.equal(before, after)


def test_a_visible_nan_spoils_the_rows_that_see_it_alone() -> None:
    query, key, value = tensors()
    value[0, 0, 60] = torch.nan
    output = ask(call_of(query, key, value, masks.causal(), start=0), ())[0]
    spoiled = output.isnan().any(-1)
    assert spoiled[0, :2, 60:].all()
    assert spoiled.sum() == 2 * 10


# Bits


def test_asking_does_not_change_the_output() -> None:
    for L in (1, 70):
        call = call_of(*tensors(L=L), masks.causal())
        output = ask(call, ())[0]
        for question in QUESTIONS:
            assert torch.equal(output, ask(call, (question,))[0])
        assert torch.equal(output, ask(call)[0])


@pytest.mark.parametrize("L", [1, 300])
def test_two_runs_agree_bit_for_bit_and_threads_change_nothing_but_rounding(L: int) -> None:
    call = call_of(*tensors(B=1, H=2, G=1, L=L, S=900), masks.causal())
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        first, second = ask(call), ask(call)
        torch.set_num_threads(1)
        alone = ask(call)
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, first, second))
    assert torch.equal(first[0], alone[0])
    for several, one in zip(first, alone, strict=True):
        torch.testing.assert_close(several, one)


def test_the_gradient_repeats_bit_for_bit() -> None:
    inputs = [x.requires_grad_() for x in tensors(B=1, H=2, G=1, L=300, S=300)]
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        grads = []
        for _ in range(2):
            output, weights = heedful.scaled_dot_product_attention(
                *inputs, masks.causal(), backend="native", reduce=(Entropy(),)
            )
            grads.append(torch.autograd.grad(output.square().sum() + weights.entropy().sum(), inputs))
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, *grads))


def test_a_gradient_of_the_bias_goes_to_the_kernel_some_rows_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query, key, value = (x.requires_grad_() for x in tensors())
    relative, table = heedful.RelativeBias(6), torch.randn(1, 6, 70, 90, requires_grad=True)
    shared = torch.randn(2, 1, 1, 90, requires_grad=True)
    bias, inputs = (relative, table, shared), (query, table, shared, *relative.parameters())

    def gradients(backend: str) -> tuple[Tensor, ...]:
        output, weights = heedful.scaled_dot_product_attention(
            query, key, value, masks.causal(), attn_bias=bias, softcap=5.0, backend=backend, reduce=(TopK(3),)
        )
        return torch.autograd.grad(output.sin().sum() + weights.topk(3).values.square().sum(), inputs)

    expected = gradients("panels")
    monkeypatch.setattr("heedful.backends.native._visible.ELEMENTS", 20000)
    monkeypatch.setattr("heedful.backends.native._gradient.plain", None)
    torch.testing.assert_close(gradients("native"), expected, rtol=1e-4, atol=1e-5)


def test_a_sink_that_takes_nearly_all_leaves_the_keys_apart() -> None:
    query, key, value = tensors()
    sinks = torch.tensor([3.0, 60.0, 90.0, 100.0, 0.0, -5.0])
    call = call_of(query, key, value, masks.causal(), bias=Alibi(6), sinks=sinks)
    found, true = (ask(call, (MeanDistance(),)), truth(call, (MeanDistance(),)))
    torch.testing.assert_close(found[1].double(), true[1].double(), rtol=1e-4, atol=1e-4)
    assert_true(call, rtol=4e-6)


# What it refuses


def test_what_it_refuses_it_says() -> None:
    x = torch.randn(1, 2, 3, 4)
    call = call_of(x.double(), x.double(), x.double(), edit=lambda panel: panel.weights, dropout_p=0.5)
    assert native.refusals(call) == [
        "it takes float32, bfloat16 and float16, not float64",
        "an edit changes the weights before the values are summed",
        "dropout changes the weights before the values are summed",
    ]
    assert native.refusals(call_of(x, x, x)) == []
    assert native.refusals(call_of(*(x.to("meta") for _ in range(3)))) == [
        "it runs on the CPU, the tensors are on meta"
    ]


def test_a_long_mask_whose_keys_lie_apart_is_left_to_panels() -> None:
    query, key, value = tensors(B=1, H=2, G=1, L=2048, S=2048, E=8, Ev=8)
    sink_and_window = masks.causal() & (masks.prefix(4) | masks.window(64))
    with pytest.raises(NotImplementedError, match="the keys of this mask lie apart"):
        heedful.scaled_dot_product_attention(query, key, value, sink_and_window, backend="native")
    output = heedful.scaled_dot_product_attention(query, key, value, sink_and_window).output
    one = (query[:, :, 1500:1501], key, value)
    again = heedful.scaled_dot_product_attention(
        *one, sink_and_window, query_start=1500, backend="native"
    ).output
    torch.testing.assert_close(output[:, :, 1500:1501], again)
    for near in (
        masks.causal() & (masks.prefix(4) | masks.window(1800)),
        masks.window(64),
        masks.prefix(2048),
    ):
        assert not native.refusals(call_of(query, key, value, near))
