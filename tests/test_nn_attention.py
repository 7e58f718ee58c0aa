"""The multi-head module: against the definition, the post, and reports about other modules."""

import copy
import pickle

import pytest
import torch
from torch import nn

import heedful
from heedful import masks
from heedful.nn import KVCache, MultiHeadAttention
from heedful.positions import Alibi, Learned, RelativeBias, Rotary, Sinusoidal

B, L, S, E, H = 2, 5, 7, 12, 3


def by_definition(mha, query, key, value, keep=None, bias=None, *, normalized=False, dtype=torch.float64):
    """What the module computes, dense, from its parameters alone."""
    heads, groups, dim = mha.num_heads, mha.num_kv_heads, mha.head_dim

    def split(x, projection, count):
        x = x.to(dtype) @ projection.weight.to(dtype).T
        x = x if projection.bias is None else x + projection.bias.to(dtype)
        return torch.stack([x[..., i * dim : (i + 1) * dim] for i in range(count)], dim=1)

    q, k, v = (
        split(query, mha.q_proj, heads),
        split(key, mha.k_proj, groups),
        split(value, mha.v_proj, groups),
    )
    if normalized:
        q = q / (q.square().mean(-1, keepdim=True) + 1e-6).sqrt() * mha.q_norm.weight.to(dtype)
        k = k / (k.square().mean(-1, keepdim=True) + 1e-6).sqrt() * mha.k_norm.weight.to(dtype)
    if isinstance(mha.position, Rotary):
        q, k = mha.position.rotate(q), mha.position.rotate(k)
    shared = torch.arange(heads) // (heads // groups)
    logits = q @ k[:, shared].mT * (dim**-0.5 if mha.scale is None else mha.scale)
    if mha.softcap is not None:
        logits = mha.softcap * (logits / mha.softcap).tanh()
    if bias is not None:
        logits = logits + bias
    if keep is not None:
        logits = logits.masked_fill(~keep, -torch.inf)
    if mha.sinks is not None:
        logits = torch.cat([logits, mha.sinks.to(dtype)[:, None, None].expand(*logits.shape[:-1], 1)], dim=-1)
    weights = logits.softmax(-1)
    weights = weights if mha.sinks is None else weights[..., :-1]
    context = torch.cat((weights @ v[:, shared]).unbind(1), dim=-1)
    out = context @ mha.out_proj.weight.to(dtype).T
    return out + (0 if mha.out_proj.bias is None else mha.out_proj.bias.to(dtype)), weights


def randomized(mha):
    """The module with every parameter random, so that no bias, norm or sink is at its neutral start."""
    with torch.no_grad():
        for parameter in mha.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4 + 0.1)
    return mha


def assert_as_good_as(plain, ours, exact):
    """The error is at most twice that of plain code in the same dtype, and one rounding of the largest value."""
    budget = 2 * ((plain.double() - exact).abs().max() + torch.finfo(plain.dtype).eps * exact.abs().max())
    torch.testing.assert_close(ours.double(), exact, rtol=0, atol=budget.item())


VARIANTS = {
    "plain": {},
    "no-bias": {"bias": False},
    "grouped": {"num_heads": 6, "num_kv_heads": 3},
    "one-kv-head": {"num_kv_heads": 1},
    "head-dim": {"head_dim": 6, "num_heads": 5},
    "widths": {"kdim": 8, "vdim": 5},
    "qk-norm": {"qk_norm": True},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": True},
    "scale": {"scale": 1.0},
    "rotary": {"position": Rotary(), "head_dim": 4},
    "everything": {
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 6,
        "kdim": 8,
        "vdim": 5,
        "bias": False,
        "qk_norm": True,
        "softcap": 2.0,
        "sinks": True,
        "position": Rotary(base=50.0, rotary_dim=4),
    },
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", VARIANTS)
def test_module_is_its_definition(name, dtype):
    options = {"num_heads": H, **VARIANTS[name]}
    mha = randomized(MultiHeadAttention(E, **options, dtype=dtype))
    query = torch.randn(B, L, E, dtype=dtype)
    key = torch.randn(B, S, mha.kdim, dtype=dtype)
    value = torch.randn(B, S, mha.vdim, dtype=dtype)
    keep = torch.rand(B, 1, L, S) < 0.7
    output, weights = mha(query, key, value, keep, query_start=0)
    normalized = "qk_norm" in options
    exact = by_definition(mha, query, key, value, keep, normalized=normalized)
    plain = by_definition(mha, query, key, value, keep, normalized=normalized, dtype=dtype)
    assert output.dtype == weights.dtype == dtype
    for ours, theirs, true in zip((output, weights.full()), plain, exact, strict=True):
        if dtype == torch.float64:
            torch.testing.assert_close(ours, true)
        else:
            assert_as_good_as(theirs, ours, true)


def test_every_gradient_is_that_of_the_definition():
    options = {**VARIANTS["everything"], "bias": True}
    mha = randomized(MultiHeadAttention(E, **options, dtype=torch.float64))
    inputs = [
        torch.randn(B, n, d, dtype=torch.float64, requires_grad=True) for n, d in ((L, E), (S, 8), (S, 5))
    ]
    wanted = torch.randn(B, L, E, dtype=torch.float64)
    everything = [*inputs, *mha.parameters()]
    ours = torch.autograd.grad((mha(*inputs, query_start=0).output * wanted).sum(), everything)
    theirs = torch.autograd.grad((by_definition(mha, *inputs, normalized=True)[0] * wanted).sum(), everything)
    torch.testing.assert_close(ours, theirs)


def test_key_and_value_default_to_the_query():
    mha = MultiHeadAttention(E, H)
    x, y = torch.randn(B, L, E), torch.randn(B, S, E)
    torch.testing.assert_close(mha(x).output, mha(x, x, x).output, rtol=0, atol=0)
    torch.testing.assert_close(mha(x, y).output, mha(x, y, y).output, rtol=0, atol=0)


def test_reductions_and_edits_pass_through():
    mha = MultiHeadAttention(E, H)
    x = torch.randn(B, L, E)
    _, weights = mha(x, mask=masks.causal(), reduce=heedful.Entropy())
    full = weights.full()
    expected = -(full * full.clamp(min=1e-30).log()).sum(-1)
    torch.testing.assert_close(weights.entropy(), expected)

    def without_head_one(panel):
        return panel.weights * torch.tensor([1.0, 0.0, 1.0])[panel.rows.heads, None, None]

    edited = mha(x, edit=without_head_one)
    assert edited.weights.full()[:, 1].abs().max() == 0
    torch.testing.assert_close(edited.weights.full()[:, ::2], mha(x).weights.full()[:, ::2])


class Post(nn.Module):
    """The post's module."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.embed_dim, self.num_heads, self.d_k = embed_dim, num_heads, embed_dim // num_heads
        self.W_q, self.W_k = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)
        self.W_v, self.W_o = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(self, Q, K, V, mask=None):
        split = (Q.shape[0], -1, self.num_heads, self.d_k)
        Q = self.W_q(Q).reshape(split).transpose(1, 2)
        K = self.W_k(K).reshape(split).transpose(1, 2)
        V = self.W_v(V).reshape(split).transpose(1, 2)
        scores = torch.matmul(Q, K.transpose(-2, -1)) / (self.d_k**0.5)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        weights = scores.softmax(dim=-1)
        context = torch.matmul(weights, V).transpose(1, 2).reshape(Q.shape[0], -1, self.embed_dim)
        return self.W_o(context), weights


@pytest.mark.parametrize(
    "mask", [None, torch.ones(10, 10).tril().int(), torch.ones(2, 1, 10, 10).tril().bool()]
)
def test_the_posts_code_works_with_only_the_import_changed(mask):
    post, mha = Post(512, 8), MultiHeadAttention(512, 8)
    mha.load_state_dict(post.state_dict())
    Q, K, V = torch.randn(3, 2, 10, 512).unbind()
    output, weights = mha(Q, K, V) if mask is None else mha(Q, K, V, mask)
    expected, expected_weights = post(Q, K, V, mask)
    assert output.shape == (2, 10, 512)
    assert weights.shape[1] == 8
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights.full(), expected_weights)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 8, 10))


def test_weights_come_per_head():
    """pytorch#34537: per-head weights were averaged or None, depending on the route."""
    x = torch.randn(4, 3, 10)
    assert MultiHeadAttention(10, 2)(x).weights.full().shape == (4, 2, 3, 3)


def test_weights_are_not_built_unless_asked():
    """RT-DETR#678: returning weights that nobody read cost nine kernels instead of three."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            for tensor in torch.utils._pytree.tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    self.size = max(self.size, tensor.untyped_storage().nbytes())
            return result

    x = torch.randn(1, 4096, 8)
    with Largest() as largest, torch.no_grad():
        MultiHeadAttention(8, 2)(x, mask=masks.causal())
    assert 0 < largest.size < 2 * 4096 * 4096 * 4


def test_value_width_may_differ_from_key_width():
    """pytorch#41070: a vdim of its own was mishandled."""
    mha = MultiHeadAttention(8, 2, kdim=6, vdim=4)
    output, _ = mha(torch.randn(B, L, 8), torch.randn(B, S, 6), torch.randn(B, S, 4))
    assert output.shape == (B, L, 8)


def test_items_of_a_batch_do_not_see_each_other():
    """pytorch#67651: batch first done by a view swapped batch and sequence."""
    mha = MultiHeadAttention(4, 2)
    x = torch.randn(2, 3, 4)
    changed = torch.cat([x[:1] + 1, x[1:]])
    torch.testing.assert_close(mha(changed).output[1], mha(x).output[1], rtol=0, atol=0)
    assert not torch.allclose(mha(changed).output[0], mha(x).output[0])


def test_output_projection_is_called():
    """LoRA-Torch#3: its weight was used without calling it, so adapters and hooks on it did nothing."""

    class Doubled(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return 2 * self.inner(x)

    mha, x = MultiHeadAttention(8, 2), torch.randn(B, L, 8)
    plain = mha(x).output
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        calls = []
        handle = mha.get_submodule(name).register_forward_hook(lambda *_, calls=calls: calls.append(1))
        mha(x)
        handle.remove()
        assert calls == [1]
    mha.out_proj = Doubled(mha.out_proj)
    torch.testing.assert_close(mha(x).output, 2 * plain)


def test_hooks_on_the_module_run_in_eval_too():
    """pytorch#128413: a fast path skipped forward hooks in eval mode without gradients."""
    mha, calls = MultiHeadAttention(8, 2).eval(), []
    mha.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        mha(torch.randn(B, L, 8))
    assert calls == [1]


def test_dropout_is_off_in_eval():
    """pytorch#124464: attention as a function has no mode, so dropout stayed on."""
    mha, x = MultiHeadAttention(8, 2, dropout=0.5), torch.randn(B, 30, 8)
    trained = [mha(x) for _ in range(2)]
    assert not torch.equal(trained[0].output, trained[1].output)
    torch.testing.assert_close(trained[0].weights.full().sum(-1), torch.ones(B, 2, 30))
    mha.eval()
    torch.testing.assert_close(mha(x).output, mha(x).output, rtol=0, atol=0)


def test_each_input_projection_has_its_own_xavier_bound():
    """pytorch#166378: a packed (3E, E) matrix drawn as one made the bound smaller by the square root of 2."""
    mha = MultiHeadAttention(64, 4, kdim=32)
    for projection, (fan_in, fan_out) in {
        mha.q_proj: (64, 64),
        mha.k_proj: (32, 64),
        mha.v_proj: (64, 64),
        mha.out_proj: (64, 64),
    }.items():
        bound = (6 / (fan_in + fan_out)) ** 0.5
        largest = projection.weight.abs().max().item()
        assert 0.98 * bound < largest <= bound
        assert projection.bias.abs().max() == 0


def test_scores_are_divided_by_the_root_of_the_head_size():
    """vit-pytorch#65: the model size, or nothing, was used instead. E = 8, H = 2: divide by 2."""
    mha = MultiHeadAttention(8, 2, bias=False)
    for projection in (mha.q_proj, mha.k_proj):
        nn.init.eye_(projection.weight)
    x = torch.randn(1, 3, 8)
    logits = torch.stack([x[..., :4] @ x[..., :4].mT, x[..., 4:] @ x[..., 4:].mT], dim=1) / 2
    torch.testing.assert_close(mha(x).weights.full(), logits.softmax(-1))


def test_rows_sum_to_one_over_the_keys():
    """PyTorch-NLP#2: softmax over the wrong axis; pytorch-image-models PR#2236: a mask after the softmax."""
    mha = MultiHeadAttention(8, 2)
    _, weights = mha(torch.randn(1, 2, 8), torch.randn(1, 3, 8), mask=torch.tensor([[[True, False, True]]]))
    torch.testing.assert_close(weights.full().sum(-1), torch.ones(1, 2, 2))
    assert weights.full()[..., 1].abs().max() == 0


def test_a_row_without_keys_gives_the_output_bias_and_finite_gradients():
    """pytorch#41508: one row without a key made every gradient of the input projections NaN."""
    mha = randomized(MultiHeadAttention(4, 2))
    keep = torch.ones(B, 3, 3, dtype=torch.bool)
    keep[1, 2] = False
    output, weights = mha(torch.randn(B, 3, 4), mask=keep)
    torch.testing.assert_close(output[1, 2], mha.out_proj.bias)
    assert weights.full()[1, :, 2].abs().max() == 0
    output.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in mha.parameters())


@pytest.mark.parametrize("train", [True, False])
def test_a_column_of_padding_keeps_the_shape(train):
    """pytorch#86120, #107084: in eval the output was cut or zero-filled where a whole column was padding."""
    mha = MultiHeadAttention(8, 2).train(train)
    x = torch.randn(2, 4, 8)
    keep = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]])
    output, _ = mha(x, mask=keep)
    assert output.shape == (2, 4, 8)
    torch.testing.assert_close(
        output[:, :, :], mha.train(not train)(x, mask=keep.bool()).output, rtol=0, atol=0
    )


@pytest.mark.parametrize(
    "position",
    [Sinusoidal(), Learned(9, E), Rotary(rotary_dim=4), Alibi(H), RelativeBias(H)],
    ids=lambda position: type(position).__name__,
)
def test_module_takes_any_position(position):
    """With it, order matters; without it, a permuted input gives the permuted output."""
    x, order = torch.randn(B, L, E), torch.tensor([2, 0, 1, 4, 3])
    mha = randomized(MultiHeadAttention(E, H, position=position))
    assert not torch.allclose(mha(x[:, order]).output, mha(x).output[:, order], atol=1e-4)
    plain = randomized(MultiHeadAttention(E, H))
    torch.testing.assert_close(plain(x[:, order]).output, plain(x).output[:, order])
    mha(x).output.square().sum().backward()
    assert all(
        p.grad is not None and p.grad.abs().max() > 0 for p in mha.parameters() if p is not mha.k_proj.bias
    )


def test_embedded_positions_are_added_to_all_three_inputs():
    mha, position = MultiHeadAttention(E, H, position=Sinusoidal()), Sinusoidal()
    plain = MultiHeadAttention(E, H)
    plain.load_state_dict(mha.state_dict())
    x, y, z = torch.randn(B, L, E), torch.randn(B, S, E), torch.randn(B, S, E)
    torch.testing.assert_close(mha(x).output, plain(position(x)).output)
    expected = plain(position(x, 3), position(y), position(z)).output
    torch.testing.assert_close(mha(x, y, z, query_start=3).output, expected)


def test_position_bias_joins_the_given_bias():
    mha = randomized(MultiHeadAttention(E, H, position=Alibi(H)))
    x, bias = torch.randn(B, L, E), torch.randn(B, H, L, L)
    distance = (torch.arange(L) - torch.arange(L)[:, None]).abs()
    alibi = -Alibi(H).slopes()[:, None, None] * distance
    exact, plain = (
        by_definition(mha, x, x, x, bias=bias + alibi, dtype=d)[0] for d in (torch.float64, torch.float32)
    )
    assert_as_good_as(plain, mha(x, attn_bias=bias).output, exact)
    for several in ((bias,), [bias]):
        assert torch.equal(mha(x, attn_bias=several).output, mha(x, attn_bias=bias).output)


def test_copies_and_pickles():
    mha = randomized(MultiHeadAttention(E, H, position=RelativeBias(H), qk_norm=True, sinks=True))
    x = torch.randn(B, L, E)
    for twin in (copy.deepcopy(mha), pickle.loads(pickle.dumps(mha))):
        torch.testing.assert_close(twin(x).output, mha(x).output, rtol=0, atol=0)
        twin.load_state_dict({**mha.state_dict(), "W_q.bias": torch.ones(E)})
        assert twin.q_proj.bias.tolist() == [1.0] * E


def test_meta_device_and_materialization():
    with torch.device("meta"):
        mha = MultiHeadAttention(E, H, position=Rotary(rotary_dim=4), qk_norm=True, sinks=True)
    assert {p.device.type for p in mha.parameters()} == {"meta"}
    source = randomized(MultiHeadAttention(E, H, position=Rotary(rotary_dim=4), qk_norm=True, sinks=True))
    mha.to_empty(device="cpu").load_state_dict(source.state_dict())
    x = torch.randn(B, L, E)
    torch.testing.assert_close(mha(x).output, source(x).output, rtol=0, atol=0)
    output, weights = MultiHeadAttention(E, H, device="meta")(x.to("meta"))
    assert (output.shape, weights.shape) == ((B, L, E), (B, H, L, L))


def test_autocast_computes_in_its_dtype():
    """Projections in bfloat16, norms and angles in float32, a cache in between."""
    mha = randomized(MultiHeadAttention(E, H, position=Rotary(), qk_norm=True, sinks=True))
    x, cache = torch.randn(B, L, E), KVCache()
    with torch.autocast("cpu", torch.bfloat16):
        pieces = [mha(part, mask=masks.causal(), cache=cache).output for part in x.split([3, 2], dim=1)]
    assert {part.dtype for part in pieces} == {cache.keys.dtype} == {torch.bfloat16}
    exact = mha.double()(x.double(), mask=masks.causal()).output
    rounded = copy.deepcopy(mha).bfloat16()(x.bfloat16(), mask=masks.causal()).output
    assert_as_good_as(rounded, torch.cat(pieces, dim=1), exact)


def test_half_module_keeps_exact_angles():
    mha = MultiHeadAttention(E, H, position=Rotary(rotary_dim=4), dtype=torch.bfloat16)
    reference = copy.deepcopy(mha).float()
    x = torch.randn(1, 3, E).bfloat16()
    output = mha(x, query_start=4096).output
    torch.testing.assert_close(
        output.float(), reference(x.float(), query_start=4096).output, rtol=0, atol=0.02
    )


def test_repr_names_what_is_unusual():
    mha = MultiHeadAttention(
        8, 4, num_kv_heads=2, bias=False, dropout=0.1, softcap=3.0, sinks=True, position=Alibi(4)
    )
    assert repr(mha).splitlines()[:2] == [
        "MultiHeadAttention(",
        "  embed_dim=8, num_heads=4, num_kv_heads=2, head_dim=2, dropout=0.1, softcap=3.0, "
        "position=Alibi(num_heads=4), sinks=True",
    ]


def call(*shapes, **options):
    """A call of a module of width 12 with inputs of these shapes."""
    return lambda: MultiHeadAttention(E, H)(*(torch.zeros(shape) for shape in shapes), **options)


MESSAGES = [
    (lambda: MultiHeadAttention(0, 1), ValueError, "embed_dim must be an integer of at least 1, got 0."),
    (lambda: MultiHeadAttention("8", 1), ValueError, "embed_dim must be an integer of at least 1, got '8'."),
    (lambda: MultiHeadAttention(8, 0), ValueError, "num_heads must be an integer of at least 1, got 0."),
    (
        lambda: MultiHeadAttention(8, 3),
        ValueError,
        "embed_dim must be divisible by num_heads, got 8 and 3. Or give head_dim, the size of each head.",
    ),
    (
        lambda: MultiHeadAttention(8, 3, head_dim=0),
        ValueError,
        "head_dim must be an integer of at least 1, got 0.",
    ),
    (
        lambda: MultiHeadAttention(8, 4, num_kv_heads=3),
        ValueError,
        "num_heads must be a multiple of num_kv_heads, got 4 and 3: each key head serves the same number of "
        "neighboring query heads.",
    ),
    (
        lambda: MultiHeadAttention(8, 2, dropout="a"),
        ValueError,
        "dropout must be a number from 0 to 1, got 'a'.",
    ),
    (
        lambda: MultiHeadAttention(8, 2, dropout=1.5),
        ValueError,
        "dropout must be a number from 0 to 1, got 1.5.",
    ),
    (
        lambda: MultiHeadAttention(8, 2, softcap=0.0),
        ValueError,
        "softcap must be a finite number above zero, got 0.0. None leaves the scores as they are.",
    ),
    (
        lambda: MultiHeadAttention(8, 2, position=Rotary),
        TypeError,
        "position must be an object, got the class Rotary. Write Rotary(...).",
    ),
    (
        lambda: MultiHeadAttention(8, 2, position="rotary"),
        TypeError,
        "position must have a method embed, rotate or bias, as those in heedful.positions do, got 'rotary'.",
    ),
    (
        lambda: MultiHeadAttention(8, 2, position=Alibi(4)),
        ValueError,
        "position is for 4 heads, num_heads is 2.",
    ),
    (
        call((2, 3)),
        ValueError,
        "query must be (batch, length, 12), got (2, 3). For a single sequence, give query[None].",
    ),
    (call((2, 3, 8)), ValueError, "query must be (batch, length, 12), got (2, 3, 8)."),
    (call((2, 3, 12), (2, 5, 8)), ValueError, "key must be (batch, length, 12), got (2, 5, 8)."),
    (
        call((2, 3, 12), (2, 5, 12), (2, 4, 12)),
        ValueError,
        "query, key and value must have one batch size, and key and value one length.\n"
        "  query  (2, 3, 12)\n  key    (2, 5, 12)\n  value  (2, 4, 12)\n"
        "They are batch first: (batch, length, size).",
    ),
    (
        lambda: MultiHeadAttention(E, H)([1.0]),
        TypeError,
        "query must be a tensor, got list.",
    ),
    (
        lambda: MultiHeadAttention(8, 2, batch_first=True),
        TypeError,
        "MultiHeadAttention() has no argument 'batch_first': leave it out: tensors are always batch first.",
    ),
    (
        call((2, 3, 12), key_padding_mask=None),
        TypeError,
        "MultiHeadAttention has no argument 'key_padding_mask': write mask=heedful.masks.padding(~key_padding_mask): "
        "True = may attend.",
    ),
    (
        lambda: MultiHeadAttention(E, H)(torch.zeros(2, 3, E).double()),
        TypeError,
        "query must have the dtype of the module, torch.float32, got torch.float64. Use query.to(torch.float32), or "
        "convert the module with .to(torch.float64).",
    ),
    (
        call((2, 5, 12), mask=torch.ones(3, 5, dtype=torch.bool)),
        ValueError,
        "mask must be (L, S), (batch, S), (batch, L, S) or (batch, heads, L, S), with batch = 2, L = 5, S = 5; got "
        "(3, 5).",
    ),
    (
        call((2, 3, 12), cache={}),
        TypeError,
        "cache must be a heedful.KVCache, got dict. Each layer needs its own.",
    ),
    (
        lambda: MultiHeadAttention(9, 3, position=Rotary())(torch.zeros(2, 4, 9)),
        ValueError,
        "head_dim must be even, since entries turn in pairs; got 3. Turn all but the last with Rotary(rotary_dim=2).",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), MESSAGES)
def test_bad_input_says_what_to_do(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message
