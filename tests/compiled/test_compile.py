"""torch.compile with fullgraph: every kind of call, forward and backward, as eager has it."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import compiled_calls as calls
import heedful
from heedful import masks

SCRIPT = Path(calls.__file__)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def compiled(function, backend: str = "aot_eager"):
    return torch.compile(function, fullgraph=True, backend=backend)


def raised(function, *args) -> str:
    """What heedful said when the compiler gave up; Dynamo quotes it."""
    with pytest.raises(Exception) as caught:
        compiled(function)(*args)
    return str(caught.value)


@pytest.mark.parametrize("name", calls.CALLS)
def test_a_compiled_call_equals_the_eager_one(name: str) -> None:
    function, inputs = calls.CALLS[name], calls.tensors()
    run = compiled(function)
    for read in (lambda f: f(*inputs), lambda f: calls.gradients(f, inputs)):
        torch.manual_seed(0)
        found = read(run)
        torch.manual_seed(0)
        torch.testing.assert_close(found, read(function))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["documents", "questions"])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiling_is_the_first_thing_a_process_does(name: str, backend: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), name, backend],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.stdout == "equal\n", done.stderr[-2000:]


def test_weights_leave_the_compiled_call_and_answer_later() -> None:
    inputs = calls.tensors()[:3]

    def function(q: Tensor, k: Tensor, v: Tensor) -> heedful.Attention:
        return heedful.scaled_dot_product_attention(q, k, v, masks.causal(), reduce=heedful.Entropy())

    found, expected = compiled(function)(*inputs), function(*inputs)
    assert list(found.weights._answers) == [heedful.Entropy()]
    for ask in (
        lambda w: w.entropy(),
        lambda w: w.received(),
        lambda w: w[0, 1:3, [0, 4]],
        lambda w: w @ inputs[2],
    ):
        x, y = ask(found.weights), ask(expected.weights)
        torch.testing.assert_close(x, y)
        torch.testing.assert_close(
            torch.autograd.grad(x.sin().sum(), inputs[:2]), torch.autograd.grad(y.sin().sum(), inputs[:2])
        )


@pytest.mark.parametrize(
    "options",
    [{}, {"num_kv_heads": 2, "qk_norm": True, "sinks": True}, {"softcap": 3.0, "dropout": 0.3}],
    ids=str,
)
@pytest.mark.parametrize("position", [None, heedful.Alibi(4), "rotary", "relative"], ids=str)
def test_the_module_forward_and_backward(options: dict, position) -> None:
    named = {"rotary": heedful.Rotary(), "relative": heedful.RelativeBias(4)}
    position = named[position] if isinstance(position, str) else position
    module = heedful.MultiHeadAttention(8, 4, position=position, **options)
    x = torch.randn(2, 5, 8, requires_grad=True)

    def gradients(run) -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        output, weights = run(x, mask=masks.causal())
        return torch.autograd.grad(
            output.sin().sum() + weights.entropy().sum(), [x, *module.parameters()], allow_unused=True
        )

    torch.testing.assert_close(gradients(compiled(module)), gradients(module))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_autocast_inside_and_outside(dtype: torch.dtype) -> None:
    inputs = [x.detach().to(dtype) for x in calls.tensors()[:3]]

    def function(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = heedful.scaled_dot_product_attention(*inputs)
        return output, weights.entropy()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = compiled(function)(*inputs), function(*inputs)
    for x, y in zip(found, expected, strict=True):
        assert torch.equal(x, y)
        assert x.dtype == y.dtype


def test_other_lengths_use_the_same_graph() -> None:
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = heedful.scaled_dot_product_attention(x, x, x, masks.causal())
        return output, weights.distance()

    run = torch.compile(function, fullgraph=True, backend=counting, dynamic=True)
    for length in (5, 9, 6):
        x = torch.randn(2, 3, length, 4)
        torch.testing.assert_close(run(x), function(x))
    assert len(graphs) == 1


class Everything(masks.Mask):
    def block(self, rows, keys):
        return True


def test_other_scales_and_caps() -> None:
    """A temperature that changes from step to step: the second other number becomes an input of the graph."""
    query, key, value = calls.tensors()[:3]

    def attended(scale: float, softcap: float) -> tuple[Tensor, Tensor]:
        output, weights = heedful.scaled_dot_product_attention(
            query, key, value, scale=scale, softcap=softcap, reduce=heedful.Entropy()
        )
        return output, weights.entropy()

    run = compiled(attended)
    for scale, softcap in ((0.5, 3.0), (0.7, 2.0), (0.9, 1.5), (1.1, 4.0)):
        found, expected = run(scale, softcap), attended(scale, softcap)
        torch.testing.assert_close(found, expected)
        gradients = [
            torch.autograd.grad(sum(x.sum() for x in each), (query, key)) for each in (found, expected)
        ]
        torch.testing.assert_close(*gradients)
    with pytest.raises(Exception, match="scale must be a finite number"):
        run(math.inf, 3.0)


def test_a_mask_of_ones_own_says_what_to_do() -> None:
    message = (
        "Everything cannot go through torch.compile, torch.export or the meta device: masks, biases, edits and "
        "reductions there must be heedful's own. Call attention with it in a function of its own, "
        "under @torch.compiler.disable."
    )
    inputs = [x.detach() for x in calls.tensors()[:3]]
    assert message in raised(lambda q, k, v: calls.output(q, k, v, Everything()), *inputs)

    @torch.compiler.disable
    def apart(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return calls.output(q, k, v, Everything())

    run = torch.compile(lambda *inputs: apart(*inputs) + 1, backend="aot_eager")
    torch.testing.assert_close(run(*inputs), calls.output(*inputs) + 1)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)  # torch's own jvp uses it
@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp"])
def test_torch_func_inside_is_refused_and_never_silently_zero(transform: str) -> None:
    query, key, value = (x.detach() for x in calls.tensors()[:3])

    def summed(q: Tensor) -> Tensor:
        return calls.output(q, key, value).sum()

    functions = {
        "grad": lambda q: torch.func.grad(summed)(q),
        "vmap": lambda q: torch.func.vmap(summed)(q[None]),
        "jvp": lambda q: torch.func.jvp(summed, (q,), (q,)),
    }
    message = "attention inside torch.compile or on the meta device has no torch.func and no forward mode. "
    assert message in raised(functions[transform], query)


def test_sides_that_the_compiler_swaps_are_refused() -> None:
    message = (
        "torch.compile swaps the sides of @ with weights. "
        "Write torch.matmul(weights, x), and torch.matmul(weights.mT, x.mT).mT for x @ weights."
    )
    square = torch.randn(2, 3, 5, 5)
    for product in (lambda w, x: w @ x, lambda w, x: x @ w):
        assert message in raised(
            lambda x, product=product: product(heedful.scaled_dot_product_attention(x, x, x).weights, x),
            square,
        )


def test_single_weights_are_refused() -> None:
    message = "an index that picks single weights cannot be compiled, nor used on the meta device. "
    x = torch.randn(2, 3, 5, 4)
    assert message in raised(
        lambda x: heedful.scaled_dot_product_attention(x, x, x).weights[0, [0, 1], [2, 3], [1, 0]], x
    )
