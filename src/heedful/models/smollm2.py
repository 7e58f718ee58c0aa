"""SmolLM2-135M, a small Llama, whole: grouped heads, rotary positions, and a gated feedforward, thirty times."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heedful import Weights, masks
from heedful.models import ModelNotInstalled
from heedful.models.reading import Reader
from heedful.nn import MultiHeadAttention
from heedful.positions import Rotary

EPS = 1e-5


class Layer(nn.Module):
    """Attention, then a gated feedforward; each reads a normalized copy and is added to what came in."""

    def __init__(self, width: int, hidden: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps=EPS)
        self.attention = MultiHeadAttention(
            width,
            num_heads,
            num_kv_heads=num_kv_heads,
            bias=False,
            position=Rotary(base=100_000, layout="interleaved"),
        )
        self.feedforward_norm = nn.RMSNorm(width, eps=EPS)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Weights]:
        """From (B, L, width) to the same shape, and the weights."""
        output, weights = self.attention(self.attention_norm(x), mask=masks.causal())
        x = x + output
        inside = self.feedforward_norm(x)
        return x + self.down(nn.functional.silu(self.gate(inside)) * self.up(inside)), weights


class Decoded(NamedTuple):
    """What `SmolLM2` returns: logits of the token after each, (B, L, vocabulary), and each layer's weights."""

    logits: Tensor
    weights: list[Weights]


class SmolLM2(nn.Module):
    """The language model, in its published size."""

    def __init__(
        self, vocabulary: int = 49152, width: int = 576, hidden: int = 1536, num_layers: int = 30
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            Layer(width, hidden, num_heads=9, num_kv_heads=3) for _ in range(num_layers)
        )
        self.norm = nn.RMSNorm(width, eps=EPS)

    def forward(self, ids: Tensor, last: int | None = None) -> Decoded:
        """Read token ids (B, L). Logits of the `last` tokens only, or of all."""
        x, found = self.words(ids), []
        for layer in self.layers:
            x, weights = layer(x)
            found.append(weights)
        x = x if last is None else x[:, -last:]
        return Decoded(nn.functional.linear(self.norm(x), self.words.weight), found)


# Published name -> ours. The query and key rows of the file are in the order that "interleaved" rotation wants.
RENAMED = {
    "token_embd": "words",
    "output_norm": "norm",
    "blk.": "layers.",
    "attn_norm": "attention_norm",
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_output": "attention.out_proj",
    "ffn_norm": "feedforward_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}


def load(file: Path) -> Reader:
    """Build the published model from its one file.

    Raises:
        ModelNotInstalled: The package gguf is missing.
    """
    try:
        from gguf import GGUFReader, dequantize
    except ImportError:
        raise ModelNotInstalled(
            "smollm2 needs the package gguf. Install it with:\n  pip install gguf"
        ) from None

    content = GGUFReader(file)
    parameters = {}
    for tensor in content.tensors:
        name = tensor.name
        for published, ours in RENAMED.items():
            name = name.replace(published, ours)
        parameters[name] = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
    with torch.device("meta"):  # no random start values: all of them come from the file
        model = SmolLM2()
    model.load_state_dict(parameters, assign=True)
    model.eval().requires_grad_(False)
    return Reader(
        "smollm2", model, _tokenizer(content.fields), max_tokens=8192, causal=True, options={"last": 1}
    )


def _tokenizer(fields: Any) -> Any:
    """The tokenizer that the file describes: bytes, joined by its list of merges, each digit by itself."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3
    marks = [token for token, kind in zip(tokens, kinds, strict=True) if kind == control]
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    return tokenizer
