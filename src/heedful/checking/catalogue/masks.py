"""Mistakes in what the mask means and where it acts."""

from functools import partial

import torch
from torch import Tensor

from heedful.checking.catalogue.entry import Family
from heedful.checking.stages import Call, Sizes

family = Family(
    "mask",
    "The mask",
    "A mask says which pairs may attend. A blocked pair must get a weight of exactly 0, and the other weights of "
    "its row must still sum to 1. That takes minus infinity before softmax, on the right axes.",
)
FILL = "scores.masked_fill(~keep, -math.inf) before softmax, with keep True where a pair may attend"


def opposite(call: Call) -> Tensor | None:
    """The given mask with its meaning turned around."""
    return None if call.keep is None else ~call.keep


def opposite_padding(call: Call, sizes: Sizes) -> Tensor | None:
    """Real tokens are blocked, padding is seen."""
    return None if call.padding is None else ~call.padding[:, None, None, :]


@family.mistake(
    "mask-inverted",
    summary="the mask means the opposite of what the target says",
    says="the mask means the opposite of what {claim} says: it {actual}",
    remedy=FILL + "; nn.MultiheadAttention's masks are the other way round",
    source="LLMs-from-scratch#1061, x-transformers#160, NVIDIA/TransformerEngine#614 (polarity mixed up)",
    shows="any mask; only called a mistake when the target itself says which meaning it has",
    searched=False,
)
def inverted() -> list[dict[str, object]]:
    """True means "may attend" in `F.scaled_dot_product_attention` and "blocked" in `nn.MultiheadAttention`.

    With a causal mask of the wrong polarity a model sees only the future, and its training loss looks superb.
    """
    return [{"given": opposite}, {"padded": opposite_padding}]


def nothing_given(call: Call) -> None:
    """No mask."""


@family.mistake(
    "mask-ignored",
    stage="given",
    says="the mask is accepted and changes nothing",
    remedy=FILL + "; raise when a mask can't be honored",
    source="facebookresearch/xformers#103, NVIDIA/TransformerEngine#1524, AI-Hypercomputer/maxtext#878",
    shows="any mask that blocks something",
)
def ignored(call: Call) -> None:
    """The argument is there, but the chosen path drops it."""


def no_padding(call: Call, sizes: Sizes) -> None:
    """No padding."""


@family.mistake(
    "padding-ignored",
    stage="padded",
    says="the padding mask is accepted and changes nothing: padded keys are attended",
    remedy="scores.masked_fill(~keep[:, None, None, :], -math.inf), with keep (B, S)",
    source="facebookresearch/xformers#103 and AI-Hypercomputer/maxtext#878 (a mask silently dropped)",
    shows="a batch with padding",
)
def padding_ignored(call: Call, sizes: Sizes) -> None:
    """Padded keys take part of the weight, so the answer for a sentence depends on its batch neighbors."""


@family.mistake(
    "mask-added",
    stage="restrict",
    says="a 0/1 mask is added to the scores: allowed pairs get +1, and nothing is blocked",
    remedy=FILL,
    source="huggingface/transformers PR#41443, vllm-project/speculators PR#691, pytorch/pytorch#21518",
    shows="any mask that blocks something",
    also=("float mask where a boolean is meant",),
)
def added(logits: Tensor, keep: Tensor) -> Tensor:
    """An additive mask holds 0 and minus infinity; a boolean mask added instead is worth 1 and 0.

    The result is nearly right, so training hides it.
    """
    return logits + keep.to(logits.dtype)


@family.mistake(
    "mask-zeroed",
    stage="restrict",
    says="blocked scores are set to 0 instead of minus infinity: a blocked key still gets weight exp(0)",
    remedy=FILL,
    source="the -1e-9 typo for -1e9; see keras-team/keras PR#15390 for how far such constants leak",
    shows="any mask that blocks something",
    also=("scores multiplied by the mask", "mask value -1e-9"),
)
def zeroed(logits: Tensor, keep: Tensor) -> Tensor:
    """`scores * mask` and `masked_fill(mask == 0, -1e-9)` both leave a score of 0, an average one."""
    return logits.masked_fill(~keep, 0.0)


def unrestricted(logits: Tensor, keep: Tensor) -> Tensor:
    """Nothing before softmax."""
    return logits


def drop_blocked(weights: Tensor, keep: Tensor | None, sizes: Sizes) -> Tensor:
    """Blocked weights become 0, the others stay."""
    return weights if keep is None else weights * keep


@family.mistake(
    "mask-after-softmax",
    says="the mask is multiplied in after softmax: rows with blocked keys sum to less than 1",
    remedy=FILL,
    source="pytorch-image-models PR#2236, memory-compressed-attention#2",
    shows="any mask that blocks something",
)
def after_softmax() -> list[dict[str, object]]:
    """Blocked keys have already taken their share of the row's total of 1, and it is thrown away."""
    return [{"restrict": unrestricted, "finish": drop_blocked}]


def fill(logits: Tensor, keep: Tensor, amount: float) -> Tensor:
    """Blocked scores become this number."""
    return logits.masked_fill(~keep, amount)


def add(logits: Tensor, keep: Tensor, amount: float) -> Tensor:
    """This number is added to blocked scores."""
    return logits + amount * (~keep).to(logits.dtype)


@family.mistake(
    "mask-small-fill",
    summary="blocked scores become a number that is not negative enough",
    says="blocked scores {how} {amount:g} instead of becoming minus infinity: blocked keys keep weight",
    remedy=FILL,
    source="keras-team/keras PR#15390 (masked positions still got weight)",
    shows="any mask that blocks something",
)
def small_fill() -> list[dict[str, object]]:
    """A number like -10 looks very negative, but exp(-10) is not 0, and scores of -10 exist."""
    amounts = (-1.0, -2.0, -3.0, -5.0, -10.0)
    return [
        {"restrict": partial(function, amount=amount), "words": {"amount": amount, "how": how}}
        for amount in amounts
        for function, how in ((fill, "become"), (add, "get"))
    ]


@family.mistake(
    "mask-finite-fill",
    says="large scores overcome the mask: with scores around {score:.0e} blocked keys are attended",
    remedy=FILL + "; a finite number is not infinity",
    source="keras-team/keras PR#15390, fairseq#3575",
    shows="blocked scores far above the allowed ones",
    hazard=True,
)
def finite_fill() -> list[dict[str, object]]:
    """-1e4 is enough until a score exceeds it, and in half precision -1e9 overflows to minus infinity."""
    return [{"restrict": partial(fill, amount=-1e4)}, {"restrict": partial(add, amount=-1e4)}]


@family.mistake(
    "padding-on-queries",
    stage="padded",
    says="key padding is applied to the queries: padded queries are blocked, padded keys are attended",
    remedy="keep[:, None, None, :] puts a (B, S) mask on the keys; [:, None, :, None] puts it on the queries",
    source="attention-is-all-you-need-keras#16",
    shows="a batch with padding, as many queries as keys",
)
def padding_on_queries(call: Call, sizes: Sizes) -> Tensor | None:
    """With equal lengths both axes fit. Blocked rows become NaN or an average of everything."""
    return None if call.padding is None else call.padding[:, None, :, None]


def one_more(lengths: Tensor, keys: int) -> Tensor:
    """Real tokens and one more: (B, S)."""
    return torch.arange(keys) <= lengths[:, None]


@family.mistake(
    "padding-off-by-one",
    says="one padded position too many counts as real in each sample",
    remedy="torch.arange(S) < lengths[:, None]",
    source="boundaries misread as in flash-attention#1537",
    shows="a sample shorter than the longest",
    subject="mask",
)
def padding_off_by_one() -> list[dict[str, object]]:
    """`<=` for `<`: position `length` is the first that is padding."""
    return [{"real": one_more}]


def per_sample(call: Call) -> Tensor:
    """The mask as (B, L, S)."""
    return call.keep.expand(call.query.shape[0], -1, -1, -1)[:, 0]


@family.mistake(
    "mask-on-heads",
    stage="given",
    says="a (B, L, S) mask is broadcast against the heads: head i gets the mask of sample i",
    remedy="mask[:, None] before it meets (B, H, L, S) scores",
    source="pytorch/pytorch#120810",
    shows="as many samples as heads (otherwise it raises), with different masks",
)
def mask_on_heads(call: Call) -> Tensor | None:
    """Broadcasting aligns axes from the right, so a 3-D mask meets the head axis, not the batch."""
    return None if call.keep is None else per_sample(call).unsqueeze(0)


@family.mistake(
    "mask-tiled",
    stage="given",
    says="the mask is repeated in the wrong order over batch and heads: samples get each other's masks",
    remedy="mask[:, None] broadcasts over heads; to flatten, mask.repeat_interleave(num_heads, dim=0)",
    source="pytorch/pytorch#177482 and #120810 (broadcast shapes of masks)",
    shows="two samples with different masks, two heads or more",
)
def mask_tiled(call: Call) -> Tensor | None:
    """Flattening batch and heads into one axis puts the heads of one sample next to each other.

    `mask.repeat(H, 1, 1)` puts the samples next to each other instead.
    """
    if call.keep is None:
        return None
    batch, heads = call.query.shape[0], call.heads or call.query.shape[1]
    return per_sample(call).repeat(heads, 1, 1).unflatten(0, (batch, heads))


@family.mistake(
    "mask-bias-lost",
    says="finite numbers in a float mask are lost: it is reduced to keep or block",
    remedy="scores + mask, when the mask is floating point",
    source="pytorch/pytorch#118628, #107084",
    shows="a float mask with finite numbers other than 0",
    also=("float mask turned into a boolean",),
)
def bias_lost() -> list[dict[str, object]]:
    """A float mask is a bias on the scores: it may hold ALiBi or relative positions as well as minus infinity."""
    return [{"bias": nothing_given}]


@family.mistake(
    "mask-times-infinity",
    stage="restrict",
    says="(1 - mask) * -inf is NaN where the mask is 1: every allowed score becomes NaN",
    remedy=FILL,
    source="zero times infinity, IEEE 754; see google/flax#982 for the constants used to avoid it",
    shows="any mask",
)
def times_infinity(logits: Tensor, keep: Tensor) -> Tensor:
    """0 times infinity is not 0."""
    return logits + (~keep).to(logits.dtype) * -torch.inf


@family.mistake(
    "empty-row-nan",
    stage="normalize",
    says="a query that may see nothing returns NaN; torch, flash-attn and ONNX return 0",
    remedy="weights.masked_fill(~keep.any(-1, keepdim=True), 0.0) after softmax",
    source="pytorch/pytorch#41508 (open since 2020), #103963, huggingface/transformers#32390",
    shows="a row of the mask with nothing in it: padding with a window, an empty sample",
    hazard=True,
)
def empty_nan(logits: Tensor) -> Tensor:
    """Softmax of a row of minus infinities is 0 / 0.

    The row may not matter for the loss, but its NaN spreads into the gradient of every weight.
    """
    return logits.softmax(-1)


@family.mistake(
    "empty-row-mean",
    summary="a query that may see nothing returns an average of all values",
    says="a query that may see nothing returns a plain average of all values, blocked ones too; "
    "torch, flash-attn and ONNX return 0",
    remedy="weights.masked_fill(~keep.any(-1, keepdim=True), 0.0) after softmax",
    source="ml-explore/mlx#2395, onnx PR#8068, microsoft/onnxruntime PR#28958",
    shows="a row of the mask with nothing in it",
    hazard=True,
)
def empty_mean() -> list[dict[str, object]]:
    """With a finite number in place of minus infinity all scores of the row are equal, and so are its weights."""
    return [{"restrict": partial(fill, amount=-1e9)}]


@family.mistake(
    "masked-nan-leak",
    summary="NaN in a blocked slot reaches the output",
    stage="mix",
    says="NaN in a blocked slot reaches the output, since 0 * NaN is NaN (true of most dense code)",
    remedy="zero the padding of value (and key) before attention",
    source="parts of pytorch/pytorch#41508; huggingface/transformers PR#30414 (slots of a cache not written yet)",
    shows="NaN or infinity in a key or value that is blocked",
    hazard=True,
)
def nan_leak(weights: Tensor, value: Tensor) -> Tensor:
    """Uninitialized cache slots and padding can hold anything. A weight of 0 does not silence a NaN."""
    return weights @ value
