"""all-MiniLM-L6-v2, a small BERT, whole: attention and two linear maps, six times."""

from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from heedful import Weights, masks
from heedful.models.files import read_safetensors, read_tokenizer
from heedful.models.reading import Reader
from heedful.nn import MultiHeadAttention

EPS = 1e-12


class Layer(nn.Module):
    """Attention, then two linear maps; each is added to what came in, and the sum is normalized."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(width, num_heads)
        self.attention_norm = nn.LayerNorm(width, eps=EPS)
        self.feedforward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.feedforward_norm = nn.LayerNorm(width, eps=EPS)

    def forward(self, x: Tensor, mask: masks.Mask | None) -> tuple[Tensor, Weights]:
        """From (B, L, width) to the same shape, and the weights."""
        output, weights = self.attention(x, mask=mask)
        x = self.attention_norm(x + output)
        return self.feedforward_norm(x + self.feedforward(x)), weights


class Encoded(NamedTuple):
    """The states (B, L, width) before the first layer and after each, and the weights of each."""

    states: list[Tensor]
    weights: list[Weights]


class MiniLM(nn.Module):
    """The encoder, in its published size."""

    def __init__(self, width: int = 384) -> None:
        super().__init__()
        self.words = nn.Embedding(30522, width)
        self.positions = nn.Embedding(512, width)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=EPS)
        self.layers = nn.ModuleList(Layer(width, num_heads=12) for _ in range(6))

    def forward(self, ids: Tensor, keep: Tensor | None = None) -> Encoded:
        """Encode token ids (B, L). `keep` (B, L) is True for real tokens and False for padding."""
        mask = None if keep is None else masks.padding(keep)
        x = self.norm(self.words(ids) + self.positions.weight[: ids.shape[1]] + self.segments.weight[0])
        encoded = Encoded([x], [])
        for layer in self.layers:
            x, weights = layer(x, mask)
            encoded.states.append(x)
            encoded.weights.append(weights)
        return encoded


# Published name -> ours, applied in this order.
RENAMED = {
    "embeddings.word_embeddings": "words",
    "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "segments",
    "embeddings.LayerNorm": "norm",
    "encoder.layer": "layers",
    "attention.self.query": "attention.q_proj",
    "attention.self.key": "attention.k_proj",
    "attention.self.value": "attention.v_proj",
    "attention.output.dense": "attention.out_proj",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "feedforward.0",
    "output.dense": "feedforward.2",
    "output.LayerNorm": "feedforward_norm",
}


def load(weights: Path, tokenizer: Path) -> Reader:
    """Build the published encoder from its two files."""
    parameters = {}
    for name, tensor in read_safetensors(weights).items():
        for published, ours in RENAMED.items():
            name = name.replace(published, ours)
        parameters[name] = tensor
    for unused in ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"):
        del parameters[unused]
    model = MiniLM()
    model.load_state_dict(parameters, assign=True)
    model.eval().requires_grad_(False)
    return Reader("minilm", model, read_tokenizer(tokenizer), 512, causal=False)
