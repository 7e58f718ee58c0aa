"""The weights of a call: an exact, lazy, differentiable matrix that is never built."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from . import _index, backends
from ._call import Call
from ._checks import describe, product_dtype
from ._operand import operand
from ._rows import size_of
from ._torch import TensorLike
from ._unchanged import changes, check_unchanged, versions
from .backends import Result
from .reductions import (
    ByKey,
    DistanceProfile,
    Entropy,
    Full,
    LogSumExp,
    Mass,
    MaxLogit,
    MeanDistance,
    Pooled,
    Received,
    Reduction,
    SinkShare,
    TopK,
    TopKResult,
    TransposedProduct,
)

CHUNK = 2**22


class Weights(TensorLike):
    """The attention weights of one call, of shape (..., H, L, S): who looked at what, and how much.

    Rows sum to 1 (to 1 less the sink's share where there is a sink, to 0 where a query sees nothing). They are the
    weights before dropout and after edits. Nothing of size L x S is stored: a question is answered from query and
    key, which are kept until the weights are dropped. Answers are float32, or float64 for float64, and differentiable
    when grad was on at the call and is on at the question.

    Cost: a question about some rows costs those rows; any other question costs one pass over the panels, in O(N)
    memory, unless `reduce=` took its answer already. `full()`, and torch functions without a stream, build the matrix.
    """

    def __init__(
        self,
        call: Call,
        backend: backends.Backend,
        batch_shape: Sequence[int],
        head_shape: Sequence[int],
        answers: Iterable[tuple[Reduction, Any]] = (),
        grad: bool | None = None,
        changed: Sequence[bool] = (),
    ):
        self._call = call
        self._backend = backend
        # In the call, leading sizes are (B, H). Here B may be split, and an integer index drops a dimension.
        self._batch_shape, self._head_shape = tuple(batch_shape), tuple(head_shape)
        self._remembered = list(answers)
        self._grad = torch.is_grad_enabled() if grad is None else grad
        self._versions = versions(call, changed)

    @property
    def shape(self) -> torch.Size:
        return torch.Size(
            (*self._batch_shape, *self._head_shape, self._call.query.shape[2], self._call.key.shape[2])
        )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of answers."""
        return self._call.dtype

    @property
    def device(self) -> torch.device:
        return self._call.query.device

    @property
    def _answers(self) -> dict[Reduction, Any]:
        """What was asked so far. Kept as pairs: a compiler cannot return a dict whose keys are reductions."""
        return dict(self._remembered)

    @property
    def edited(self) -> bool:
        """Whether an edit changed the weights of this call."""
        return bool(self._call.edits)

    def __repr__(self) -> str:
        edited = ", edited" if self.edited else ""
        return f"Weights(shape={tuple(self.shape)}, dtype={self.dtype}, device='{self.device}'{edited}; never built)"

    # Questions

    def reduce(self, *reductions: Reduction) -> Any:
        """The answers to several questions from one pass: a tuple, in order.

        What was asked before is remembered and costs nothing. Cost: one pass over the panels, O(N) memory unless an
        answer is larger.
        """
        wrong = [each for each in reductions if not isinstance(each, Reduction)]
        if wrong or not reductions:
            given = ", ".join(map(repr, wrong)) or "none"
            remedy = "".join(f" Write {each.__name__}()." for each in wrong if isinstance(each, type))
            if any(isinstance(each, list | tuple) for each in wrong):
                remedy += " Write reduce(*them) for a list."
            raise TypeError(f"reduce() takes reductions such as heedful.Entropy(), got {given}.{remedy}")
        known = self._answers
        missing = tuple(dict.fromkeys(each for each in reductions if each not in known))
        fresh = dict(zip(missing, self._run(self._call, missing).answers, strict=True)) if missing else {}
        if torch.is_grad_enabled() or not self._grad:
            self._remembered += [(each, answer) for each, answer in fresh.items() if each.remembered]
        known |= fresh
        alone = {each for each in fresh if not each.remembered and reductions.count(each) == 1}
        return tuple(self._shaped(known[each], copied=each not in alone) for each in reductions)

    def entropy(self) -> Tensor:
        """-sum of p ln p of every row, in nats: (..., H, L). Uniform over n keys gives ln n, an empty row 0."""
        return self.reduce(Entropy())[0]

    def logsumexp(self) -> Tensor:
        """Natural log of every row's denominator, the sink included: (..., H, L). -inf where a query sees nothing."""
        return self.reduce(LogSumExp())[0]

    def max_logit(self, per: Literal["query", "head"] = "query") -> Tensor:
        """Largest score before the sink: of every row (..., H, L), or per="head" (..., H)."""
        return self.reduce(MaxLogit(per))[0]

    def sink_share(self) -> Tensor:
        """What the sink takes of every row: (..., H, L); 0 without sinks."""
        return self.reduce(SinkShare())[0]

    def distance(self) -> Tensor:
        """The share of a head's attention at every distance from the query: (..., H, D)."""
        return self.reduce(DistanceProfile())[0]

    def pooled(
        self, rows: int, cols: int, how: Literal["mass", "max"] = "mass", by_value_norm: bool = False
    ) -> Tensor:
        """A small map of every head, (..., H, rows, cols): "mass" per block, or "max"; see `Pooled`."""
        return self.reduce(Pooled(rows, cols, how, by_value_norm))[0]

    def by_key(self, groups: Tensor) -> Tensor:
        """How much of every row falls on each group of keys: (..., H, L, groups), for groups (S,) or (B, S)."""
        return self.reduce(ByKey(groups))[0]

    def head_mean(self) -> Tensor:
        """The mean over heads, (..., L, S): as large as one head's matrix, and never more than some rows of all."""
        if not self._head_shape:
            return self.full()
        step = max(1, CHUNK // max(self.shape[-1] * self._head_shape[0], 1))
        rows = [slice(start, min(start + step, self.shape[-2])) for start in range(0, self.shape[-2], step)]
        chunks = [self[..., chunk, :].mean(-3) for chunk in rows]
        return torch.cat(chunks, -2) if chunks else self.full().mean(-3)

    def value_norms(self, out_proj: Tensor | None = None) -> Tensor:
        """Length of each value row, (..., G, S): a large weight on a short vector moves little (Kobayashi et al. 2020).

        Args:
            out_proj: The output projection, (embed_dim, H * Ev): then the length of what each query head writes,
                (..., H, S).
        """
        check_unchanged(self._call, self._versions, value_too=True)
        value = self._call.value.to(self.dtype)
        if out_proj is not None:
            H, Ev = self._call.query.shape[1], value.shape[-1]
            matrix = isinstance(out_proj, Tensor) and out_proj.dim() == 2
            if not matrix or out_proj.shape[1] != H * Ev or out_proj.device != self.device:
                where = f" on {out_proj.device}" if isinstance(out_proj, Tensor) else ""
                raise ValueError(
                    f"out_proj must be (embed_dim, H * Ev) with H * Ev = {H * Ev} on {self.device}, "
                    f"got {describe(out_proj)}{where}."
                )
            per_head = out_proj.to(self.dtype).unflatten(1, (H, Ev)).permute(1, 2, 0)
            value = value.repeat_interleave(H // value.shape[1], 1) @ per_head
        return self._shaped(torch.linalg.vector_norm(value, dim=-1))

    def mean_distance(self) -> Tensor:
        """Mean distance, in positions, of what each query looks at: (..., H, L)."""
        return self.reduce(MeanDistance())[0]

    def topk(self, k: int) -> TopKResult:
        """The k largest weights of every row and their keys, largest first: values and indices (..., H, L, k).

        Where a query sees fewer than k keys the rest is 0 and -1. Raises ValueError for k > S.
        """
        reduction = TopK(k)
        if k > self.shape[-1]:
            raise ValueError(f"topk(): k must be at most the number of keys, {self.shape[-1]}, got {k}.")
        wider = next((each for each, _ in self._remembered if type(each) is TopK and each.k >= k), reduction)
        found = self.reduce(wider)[0]
        return found if wider.k == k else TopKResult(*(x[..., :k] for x in found))

    def received(
        self,
        how: Literal["sum", "mean", "max"] = "sum",
        per: Literal["head", "kv_head"] = "head",
        by_value_norm: bool = False,
    ) -> Tensor:
        """How much attention each key receives: (..., H, S), or (..., G, S) with per="kv_head".

        Args:
            how: "sum" over the queries, "max", or "mean" over the queries that may see the key.
            per: "head" or "kv_head".
            by_value_norm: Multiply each weight by the length of the value row it carries.
        """
        return self.reduce(Received(how, per, by_value_norm))[0]

    def full(self, dtype: torch.dtype | None = None) -> Tensor:
        """The matrix (..., H, L, S), in `dtype` or that of answers. Never refuses; costs L x S memory per head."""
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise TypeError(
                f"full(): dtype must be a floating-point dtype such as torch.float16, got {dtype!r}."
            )
        matrix = self.reduce(Full())[0]
        return matrix if dtype is None else matrix.to(dtype)

    def __matmul__(self, x: Tensor) -> Tensor:
        """weights @ x, (..., H, L, F), in O(N) memory and the dtype of x; that of answers for integers and bools.

        Args:
            x: (..., H or G or 1, S, F), or (S, F), or (S,).
        """
        key, G = self._call.key, self._call.key.shape[1]
        value = operand(self, x, "weights @ x", "S", key.shape[2])
        if value.shape[1] == 1:
            value = value.expand(-1, G, -1, -1)
        elif value.shape[1] != G:
            key = key.repeat_interleave(self._call.query.shape[1] // G, 1)
        call = replace(self._call, query=self._call.query.to(self.dtype), key=key.to(self.dtype), value=value)
        output = self._run(replace(call, dropout_p=0.0), (), need_output=True).output
        return self._shaped(output.squeeze(-1) if x.dim() == 1 else output).to(product_dtype(x, self.dtype))

    @property
    def mT(self) -> "TransposedWeights":
        """The transpose, for `weights.mT @ y`."""
        return TransposedWeights(self)

    def streams(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """torch.sum, mean and amax over queries or keys, and matmul, without the matrix."""
        if name == "matmul" and len(args) == 1 and not kwargs:
            return self.__matmul__(args[0])
        dim = kwargs.pop("dim", args[0] if args else None)
        keepdim = kwargs.pop("keepdim", args[1] if len(args) > 1 else False)
        other = not isinstance(dim, int) or not -2 <= (dim - self.ndim if dim >= 0 else dim) < 0
        if other or kwargs or len(args) > 2:
            return NotImplemented
        over_keys = dim in (-1, self.ndim - 1)
        if name in ("sum", "mean"):
            answer = self.reduce(Mass() if over_keys else Received())[0]
            answer = answer / self.shape[dim] if name == "mean" else answer
        elif name == "amax":
            answer = self.topk(1).values.squeeze(-1) if over_keys else self.received("max")
        else:
            return NotImplemented
        return answer.unsqueeze(dim) if keepdim else answer

    # Parts

    def __getitem__(self, index: Any) -> Any:
        """Some of the weights. Batch and head indices alone give a smaller `Weights`, all else a tensor.

        Cost: time of the rows that the index touches, whole; memory of the answer. Raises IndexError.
        """
        shape = tuple(self.shape)
        plan = _index.parse(index, shape, self.device)
        if plan is None:
            return self._elements(_index.coordinates(index, shape, self.device))
        selected = self._select(plan.choices)
        if not plan.only_leading:
            return selected.full()[..., plan.choices[-1]][plan.final]
        kept = [isinstance(item, slice) for item in plan.final[:-2]]
        batch = len(self._batch_shape)
        selected._batch_shape = tuple(
            size for size, keep in zip(selected._batch_shape, kept[:batch], strict=True) if keep
        )
        selected._head_shape = tuple(
            size for size, keep in zip(selected._head_shape, kept[batch:], strict=True) if keep
        )
        return selected

    def _select(self, choices: list[slice | Tensor]) -> "Weights":
        """The weights of some batch items, heads and rows; every dimension stays."""
        batch = len(self._batch_shape)
        heads = choices[batch] if self._head_shape else slice(0, 1)
        items = _index.flattened(choices[:batch], self._batch_shape, self.device)
        call = self._call.select(items, heads, choices[-2])
        check_unchanged(self._call, self._versions, value_too=False)
        batch_shape = tuple(map(size_of, choices[:batch]))
        head_shape = call.query.shape[1:2] if self._head_shape else ()
        changed = changes(self._call, self._versions)
        return Weights(call, self._backend, batch_shape, head_shape, grad=self._grad, changed=changed)

    def _elements(self, coordinates: list[Tensor]) -> Tensor:
        """Single weights, given the coordinates of each: the rows they lie in are computed, some at a time."""
        *leading, rows, keys = (grid.flatten() for grid in coordinates)
        batch = torch.zeros_like(rows)
        for size, grid in zip(self._batch_shape, leading, strict=False):
            batch = batch * size + grid
        head = leading[-1] if self._head_shape else torch.zeros_like(rows)
        _, H, L, _ = self._call.query.shape
        wanted, place = ((batch * H + head) * L + rows).unique(return_inverse=True)
        places, values, done = [], [], 0
        for chunk in wanted.split(max(1, CHUNK // max(self.shape[-1], 1))):
            for pair in (chunk // L).unique().tolist():
                b, h = divmod(pair, H)
                call = self._call.select(slice(b, b + 1), slice(h, h + 1), chunk[chunk // L == pair] % L)
                matrix = self._run(call, (Full(),)).answers[0][0, 0]
                here = ((place >= done) & (place < done + len(matrix))).nonzero().flatten()
                places.append(here)
                values.append(matrix[place[here] - done, keys[here]])
                done += len(matrix)
        if not places:
            return self._call.query.new_zeros(coordinates[0].shape, dtype=self.dtype)
        return torch.cat(values)[torch.cat(places).argsort()].view(coordinates[0].shape)

    # How answers are found

    def _run(self, call: Call, reductions: tuple[Reduction, ...], need_output: bool = False) -> Result:
        value_too = any(reduction.reads_value for reduction in reductions)
        check_unchanged(self._call, self._versions, value_too)
        with torch.set_grad_enabled(self._grad and torch.is_grad_enabled()):
            return backends.run(backends.able(self._backend, call), call, reductions, need_output)

    def _shaped(self, answer: Any, copied: bool = False) -> Any:
        """An answer (B, H or G, ...) with the leading sizes that the caller knows."""

        def shaped(x: Tensor) -> Tensor:
            x = x.clone() if copied else x if torch.is_grad_enabled() else x.detach()
            if self._head_shape and len(self._batch_shape) == 1:
                return x
            return x.reshape(*self._batch_shape, *(x.shape[1:2] if self._head_shape else ()), *x.shape[2:])

        if type(answer) is TopKResult:
            return TopKResult(*map(shaped, answer))
        return shaped(answer) if isinstance(answer, Tensor) else tree_map_only(Tensor, shaped, answer)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are detached and carry the remembered answers."""
        answers = tree_map_only(Tensor, Tensor.detach, self._remembered)
        parts = self._backend.NAME, self._batch_shape, self._head_shape, answers
        return _restore, (self._call.detach(), *parts, False, changes(self._call, self._versions))


class TransposedWeights(TensorLike):
    """The transpose of `Weights`, (..., H, S, L): `weights.mT @ y` says what each key gives back to its readers."""

    def __init__(self, weights: Weights):
        self.mT = weights

    @property
    def shape(self) -> torch.Size:
        *leading, L, S = self.mT.shape
        return torch.Size((*leading, S, L))

    def full(self) -> Tensor:
        return self.mT.full().mT

    def __matmul__(self, y: Tensor) -> Tensor:
        """weights.mT @ y, (..., H, S, F), in O(N) memory and the dtype of y; that of answers for integers and bools.

        Args:
            y: (..., H or G or 1, L, F), or (L, F), or (L,).
        """
        H, L = self.mT._call.query.shape[1:3]
        of_heads = operand(self.mT, y, "weights.mT @ y", "L", L)
        of_heads = of_heads.repeat_interleave(H // max(of_heads.shape[1], 1), 1)
        (answer,) = self.mT._run(self.mT._call, (TransposedProduct(of_heads),)).answers
        answer = self.mT._shaped(answer.squeeze(-1) if y.dim() == 1 else answer)
        return answer.to(product_dtype(y, self.mT.dtype))


def _restore(call: Call, backend: str, *parts: Any) -> Weights:
    return Weights(call, backends.load(backend), *parts)
