"""torch's own samples for its attention (OpInfo, ModuleInfo): outputs, weights and gradients are torch's.

In float64 the samples are as torch draws them, from -9 to 9, which makes most rows of weights a single 1. In narrower
dtypes, where such rows turn on roundings, they are an eighth of that. Dropout draws other numbers in heedful, so
samples with dropout run without, and what is dropped is compared by statistics.
"""

import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heedful import KVCache, MultiHeadAttention, masks, scaled_dot_product_attention

pytest.importorskip("expecttest", reason="torch's sample inputs need expecttest")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's testing modules import deprecated parts of torch
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db

SDPA = next(op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention")
MHA_FORWARD = next(op for op in op_db if op.name == "nn.functional.multi_head_attention_forward")
MHA = next(info for info in module_db if info.module_cls is nn.MultiheadAttention)
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def heedfully(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    enable_gqa=False,
) -> Tensor:
    """torch's function by way of heedful's; leading sizes that torch would broadcast are expanded here."""
    dims = max(x.dim() for x in (query, key, value))
    query, key, value = (x[(None,) * (dims - x.dim())] for x in (query, key, value))
    heads = 0 if enable_gqa or dims < 4 else 1
    lead = torch.broadcast_shapes(*(x.shape[: max(dims - 3, 1) + heads] for x in (query, key, value)))
    query, key, value = (x.expand(*lead, *x.shape[len(lead) :]) for x in (query, key, value))
    bias = attn_mask if attn_mask is not None and attn_mask.is_floating_point() else None
    mask = masks.causal() if is_causal else None if bias is not None else attn_mask
    return scaled_dot_product_attention(
        query, key, value, mask, attn_bias=bias, dropout_p=dropout_p, query_start=0 if is_causal else None
    ).output


def results(function: Any, tensors: list[Tensor]) -> list[Tensor]:
    """What a function of some tensors returns, then the gradient of each tensor."""
    tensors = [x.detach().requires_grad_() for x in tensors]
    found = function(*tensors)
    found = list(found) if isinstance(found, tuple) else [found]
    torch.manual_seed(0)
    loss = sum((x * torch.randn(x.shape).to(x.dtype)).sum() for x in found)
    return [*found, *torch.autograd.grad(loss, tensors)]


def drawn(x: Any, dtype: torch.dtype) -> Any:
    """A tensor of a sample as it is compared in this dtype; anything else as it is."""
    return x / 8 if isinstance(x, Tensor) and x.is_floating_point() and dtype != torch.float64 else x


def assert_equal(ours: Any, theirs: Any, tensors: list[Tensor], name: str) -> None:
    """Results of two functions of the same tensors, and their gradients.

    In float64 they are close. Otherwise torch's in float64 are the truth, and our error is at most twice torch's in
    the same dtype and two roundings of the largest number there is.
    """
    mine, other = results(ours, tensors), results(theirs, tensors)
    if tensors[0].dtype == torch.float64:
        torch.testing.assert_close(mine, other, msg=lambda text: f"{name}: {text}")
        return
    exact = results(theirs, [x.double() for x in tensors])
    largest = max(float(x.detach().abs().max()) for x in [*exact, *tensors])
    for number, (x, baseline, right) in enumerate(zip(mine, other, exact, strict=True)):
        assert (x.shape, x.dtype) == (right.shape, baseline.dtype), f"{name}, result {number}"
        mistake, accepted = (float((y.double() - right).detach().abs().max()) for y in (x, baseline))
        accepted = 2 * (accepted + torch.finfo(baseline.dtype).eps * largest)
        assert mistake <= accepted, f"{name}, result {number}: off by {mistake:.2e}, accepted {accepted:.2e}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scaled_dot_product_attention(dtype: torch.dtype) -> None:
    counts = Counter()
    for number, sample in enumerate(SDPA.sample_inputs("cpu", dtype)):
        dropout = sample.kwargs["dropout_p"] > 0
        options = sample.kwargs | {"dropout_p": 0.0}
        tensors = {name: x for name, x in options.items() if isinstance(x, Tensor)}
        inputs = [drawn(x, dtype) for x in (sample.input, *sample.args, *tensors.values())]

        def called(function, names=tuple(tensors), options=options):
            return lambda query, key, value, *more: function(
                query, key, value, **options | dict(zip(names, more, strict=True))
            )

        assert_equal(called(heedfully), called(F.scaled_dot_product_attention), inputs, f"sample {number}")
        counts["with dropout_p set to 0" if dropout else "as they are"] += 1
    print(f"torch OpInfo, scaled_dot_product_attention, {dtype}: 25 of 25 samples equal, {dict(counts)}")
    assert counts.total() == 25


def test_dropout_of_scaled_dot_product_attention() -> None:
    """Over 200 calls each, our mean and variance are torch's: within six standard errors, and within 10 %."""
    tried, calls = 0, 200
    for sample in SDPA.sample_inputs("cpu", torch.float64):
        if not sample.kwargs["dropout_p"]:
            continue
        inputs, options = [sample.input, *sample.args], sample.kwargs
        torch.manual_seed(0)
        ours = torch.stack([heedfully(*inputs, **options) for _ in range(calls)])
        theirs = torch.stack([F.scaled_dot_product_attention(*inputs, **options) for _ in range(calls)])
        expected = F.scaled_dot_product_attention(*inputs, **options | {"dropout_p": 0.0})
        error = theirs.std(0) / calls**0.5
        assert ((ours.mean(0) - expected).abs() <= 6 * error).all()
        assert 0.9 < ours.var(0).mean() / theirs.var(0).mean() < 1.1
        tried += 1
    print(
        f"torch OpInfo, scaled_dot_product_attention: {tried} samples with dropout have torch's mean and variance"
    )
    assert tried == 12


def attend(
    module: MultiHeadAttention,
    parameters: dict[str, Tensor],
    inputs: list[Tensor],
    *,
    hidden: Tensor | None = None,
    added: Tensor | None = None,
    extra: list[tuple[Tensor, Tensor]] = (),
) -> tuple[Tensor, Tensor]:
    """heedful's module on batch-first inputs: the output, and weights averaged over heads as torch returns them.

    torch's `add_bias_kv` and `add_zero_attn` append keys and values; in heedful, whose module has neither, a cache
    holds them, in front.

    Args:
        hidden: torch's boolean masks, True = hidden, (B or 1, H or 1, L or 1, S).
        added: torch's float mask, of the same shape.
        extra: Projected keys and values that torch appends, each (embed_dim,).
    """
    batch, n = len(inputs[0]), len(extra)
    cache = KVCache() if extra else None
    for key, value in extra:
        cache.update(
            *(x.view(1, module.num_heads, 1, module.head_dim).expand(batch, -1, -1, -1) for x in (key, value))
        )
    mask = None if hidden is None else F.pad(~hidden, (n, 0), value=True)
    bias = None if added is None else F.pad(added, (n, 0))
    call = {"mask": mask, "attn_bias": bias, "cache": cache}
    output, weights = torch.func.functional_call(module, parameters, tuple(inputs), call)
    return output, weights.full(output.dtype).roll(-n, -1).mean(1)


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_heads: int,
    parameters: dict[str, Tensor],
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """torch's functional form by way of heedful's module; torch's parameters are given by their names."""
    batched = query.dim() == 3
    inputs = [(x if batched else x[:, None]).transpose(0, 1) for x in (query, key, value)]
    if mask is not None:
        mask = mask.expand(len(inputs[0]) * num_heads, -1, -1).unflatten(0, (-1, num_heads))
    weight = parameters.get("in_proj_weight")
    three = weight.chunk(3) if weight is not None else [parameters[f"{name}_proj_weight"] for name in "qkv"]
    named = {f"{name}_proj.weight": x for name, x in zip("qkv", three, strict=True)}
    named |= {
        f"{name}_proj.bias": x for name, x in zip("qkv", parameters["in_proj_bias"].chunk(3), strict=True)
    }
    named |= {f"out_proj.{name}": parameters[f"out_proj_{name}"] for name in ("weight", "bias")}
    module = MultiHeadAttention(query.shape[-1], num_heads, dtype=query.dtype)
    extra = [(parameters["bias_k"], parameters["bias_v"])]
    output, weights = attend(module, named, inputs, added=mask, extra=extra)
    return (output.transpose(0, 1), weights) if batched else (output[0], weights[0])


NAMES = ["in_proj_weight", "in_proj_bias", "bias_k", "bias_v", "add_zero_attn", "dropout_p"]
NAMES += ["out_proj_weight", "out_proj_bias"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_multi_head_attention_forward(dtype: torch.dtype) -> None:
    counts = Counter()
    for number, sample in enumerate(MHA_FORWARD.sample_inputs("cpu", dtype)):
        key, value, embed_dim, num_heads, *rest = sample.args
        given = dict(zip(NAMES, rest, strict=True)) | sample.kwargs
        dropout = given["dropout_p"] > 0
        options = {
            "embed_dim_to_check": embed_dim,
            "num_heads": num_heads,
            "add_zero_attn": given.pop("add_zero_attn"),
            "use_separate_proj_weight": given.pop("use_separate_proj_weight"),
            "dropout_p": 0.0,
            "training": given.pop("training"),
        }
        del given["dropout_p"]
        absent = dict.fromkeys(name for name, x in given.items() if x is None)
        tensors = {name: x for name, x in given.items() if x is not None}
        inputs = [drawn(x, dtype) for x in (sample.input, key, value, *tensors.values())]

        def ours(query, key, value, *more, names=tuple(tensors), num_heads=num_heads):
            named = dict(zip(names, more, strict=True))
            mask = named.pop("attn_mask", None)
            return forward(query, key, value, num_heads, named, mask)

        def theirs(query, key, value, *more, names=tuple(tensors), options=options, absent=absent):
            return F.multi_head_attention_forward(
                query, key, value, **options, **absent, **dict(zip(names, more, strict=True))
            )

        assert_equal(ours, theirs, inputs, f"sample {number}")
        counts["with dropout_p set to 0" if dropout else "as they are"] += 1
    print(f"torch OpInfo, multi_head_attention_forward, {dtype}: 192 of 192 samples equal, {dict(counts)}")
    assert counts.total() == 192


def through_heedful(module: nn.MultiheadAttention, inputs: list[Tensor], options: dict[str, Any]) -> Any:
    """A call of torch's module with a single sequence, by way of heedful's module with its weights."""
    named = dict(module.named_parameters())
    extra = []
    if "bias_k" in named:
        extra.append((named["bias_k"], named["bias_v"]))
    if module.add_zero_attn:
        extra.append((torch.zeros_like(inputs[0][0]), torch.zeros_like(inputs[0][0])))
    if extra:
        bias = "in_proj_bias" in named
        ours = MultiHeadAttention(module.embed_dim, module.num_heads, bias=bias, dtype=inputs[0].dtype)
        ours.load_state_dict({k: v for k, v in module.state_dict().items() if k not in ("bias_k", "bias_v")})
    else:
        ours = MultiHeadAttention.from_torch(module)
    hidden = None
    for mask in (options["key_padding_mask"], options["attn_mask"]):
        if mask is not None:
            mask = mask[None, None, None] if mask.dim() == 1 else mask[None]
            hidden = mask if hidden is None else hidden | mask
    output, weights = attend(ours, {}, [x[None] for x in inputs], hidden=hidden, extra=extra)
    return output[0], weights[0]


@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
def test_multihead_attention_module(training: bool) -> None:
    dtype = torch.float64
    samples = MHA.module_inputs_func(MHA, "cpu", dtype, False, training)
    counts = Counter()
    for number, sample in enumerate(samples):
        module = nn.MultiheadAttention(*sample.constructor_input.args, **sample.constructor_input.kwargs)
        module = module.to(dtype).train(training)
        for parameter in module.parameters():  # torch leaves biases at 0
            nn.init.normal_(parameter)
        options = sample.forward_input.kwargs
        assert_equal(
            lambda *x, m=module, o=options: through_heedful(m, list(x), o),
            lambda *x, m=module, o=options: m(*x, **o),
            list(sample.forward_input.args),
            f"sample {number}",
        )
        extra = module.add_zero_attn or module.bias_k is not None
        counts["with appended keys, from a cache" if extra else "by from_torch"] += 1
    print(f"torch ModuleInfo, MultiheadAttention, training={training}: 64 of 64 equal, {dict(counts)}")
    assert counts.total() == 64
