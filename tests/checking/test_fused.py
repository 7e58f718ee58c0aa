"""Grouped heads from one fused matrix, as most decoders have them: every usual order is read, or nothing is claimed."""

from collections.abc import Callable

import pytest
from torch import Tensor, nn
from torch.nn import functional

from heedful.checking import check


class Grouped(nn.Module):
    """Causal attention: query, key and value heads in one matrix, without an attribute that tells all the sizes."""

    def __init__(self, d_model: int = 32, n_heads: int = 4, n_kv: int = 2) -> None:
        super().__init__()
        self.h, self.kv, self.hd = n_heads, n_kv, d_model // n_heads
        self.qkv = nn.Linear(d_model, (n_heads + 2 * n_kv) * self.hd, bias=False)
        self.o = nn.Linear(n_heads * self.hd, d_model)

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.split([self.h * self.hd, self.kv * self.hd, self.kv * self.hd], -1)

    def heads(self, x: Tensor) -> list[Tensor]:
        parts = (p.unflatten(-1, (-1, self.hd)).transpose(1, 2) for p in self.parts(self.qkv(x)))
        return [p.repeat_interleave(self.h // p.size(1), 1) for p in parts]

    def forward(self, x: Tensor) -> Tensor:
        out = functional.scaled_dot_product_attention(*self.heads(x), is_causal=True)
        return self.o(out.transpose(1, 2).flatten(2))


class ValueFirst(Grouped):
    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        v, k, q = x.split([self.kv * self.hd, self.kv * self.hd, self.h * self.hd], -1)
        return q, k, v


class GroupByGroup(Grouped):
    """Each group's queries, then its key and its value, as in Megatron, Falcon and InternLM2."""

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        groups = x.unflatten(-1, (self.kv, -1, self.hd))
        return tuple(p.flatten(2) for p in (groups[..., :-2, :], groups[..., -2, :], groups[..., -1, :]))


class WithoutTranspose(Grouped):
    def forward(self, x: Tensor) -> Tensor:
        out = functional.scaled_dot_product_attention(*self.heads(x), is_causal=True)
        return self.o(out.reshape(x.size(0), x.size(1), -1))


class NotScaled(Grouped):
    def forward(self, x: Tensor) -> Tensor:
        out = functional.scaled_dot_product_attention(*self.heads(x), is_causal=True, scale=1.0)
        return self.o(out.transpose(1, 2).flatten(2))


class WithAGate(nn.Module):
    """Eight columns too many for query, key and value."""

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads, self.width = n_heads, dim
        self.qkv, self.proj = nn.Linear(dim, 3 * dim + 8), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x)[..., : 3 * self.width].chunk(3, -1)
        q, k, v = (p.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for p in parts)
        return self.proj(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("target", "order"),
    [
        (Grouped, "q, k, v (role, head, size)"),
        (Grouped(24, 3, 1), "q, k, v (role, head, size)"),
        (Grouped(32, 4, 4), "q, k, v (role, head, size)"),
        (ValueFirst, "v, k, q (role, head, size)"),
        (GroupByGroup, "q, k, v (head, role, size)"),
        (GroupByGroup(48, 6, 2), "q, k, v (head, role, size)"),
    ],
)
def test_an_order_is_worked_out(target: Callable[..., Tensor], order: str) -> None:
    found = check(target)
    assert (found.verdict, found.mistakes, found.properties) == ("right", (), ()), str(found)
    assert {f"fused projection in the order {order}", "always causal"} <= set(found.conventions)


@pytest.mark.parametrize(
    ("target", "name"), [(WithoutTranspose, "heads-merge-reshape"), (NotScaled, "scale-missing")]
)
def test_a_mistake_behind_a_fused_matrix(target: Callable[..., Tensor], name: str) -> None:
    found = check(target)
    assert ([m.name for m in found.mistakes], found.properties) == ([name], ()), str(found)


def test_a_matrix_that_does_not_come_apart_is_not_called_wrong() -> None:
    found = check(WithAGate)
    assert found.verdict == "could not tell"
    assert found.explanation.startswith(
        "I can't tell which rows of its projections are query, key and value. With 3 query heads and 3 key heads, the "
        "matrices don't come apart: output (24, 24), fused (80, 24) (rows, features)."
    )


class KeysAndValues(nn.Module):
    """Cross attention: key and value from one matrix, of one input."""

    def __init__(self, dim: int = 32, n_heads: int = 4) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.to_q, self.to_kv = nn.Linear(dim, dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        parts = (self.to_q(x), *self.to_kv(context).chunk(2, -1))
        heads = (part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in parts)
        return self.to_out(functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))


def test_keys_and_values_of_one_input_change_together() -> None:
    found = check(KeysAndValues)
    assert (found.verdict, found.hazards) == ("right", ()), str(found)
