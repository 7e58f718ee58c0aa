"""The decoder of `heedful train` against the same model out of PyTorch's own layers, in turn, in one process.

Both start from the same weights, see the same batches and use the same optimizer. Printed: the losses at the same
updates, their largest difference, and tokens per second.

    python benchmarks/train_against_torch.py --steps 200 --context 128
"""

import argparse
import statistics
import time

import torch
from torch import Tensor, nn

from heedful.positions import Sinusoidal
from heedful.train.batches import Batches
from heedful.train.learning import loss_of, new_model, new_optimizer
from heedful.train.model import Decoder
from heedful.train.recipe import Recipe
from heedful.train.text import load_corpus


class PlainDecoder(nn.Module):
    """`Decoder` with sinusoidal positions, out of `nn.TransformerEncoder`."""

    def __init__(self, vocabulary: int, recipe: Recipe) -> None:
        super().__init__()
        width = recipe.embed_dim
        layer = nn.TransformerEncoderLayer(
            width, recipe.num_heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = Sinusoidal()
        self.stack = nn.TransformerEncoder(
            layer, recipe.num_layers, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.mask = nn.Transformer.generate_square_subsequent_mask(recipe.context)

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.stack(
            self.position(self.embedding(tokens) * self.embedding.embedding_dim**0.5),
            self.mask,
            is_causal=True,
        )
        return states @ self.embedding.weight.T

    def load(self, model: Decoder) -> "PlainDecoder":
        """Take over the weights of a `Decoder`."""
        self.embedding.load_state_dict(model.embedding.state_dict())
        self.stack.norm.load_state_dict(model.norm.state_dict())
        for layer, block in zip(self.stack.layers, model.blocks, strict=True):
            layer.self_attn.load_state_dict(block.attention.to_torch().state_dict())
            layer.norm1.load_state_dict(block.attention_norm.state_dict())
            layer.norm2.load_state_dict(block.feedforward_norm.state_dict())
            layer.linear1.load_state_dict(block.feedforward[0].state_dict())
            layer.linear2.load_state_dict(block.feedforward[2].state_dict())
        return self


def update(loss: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer, rate: float) -> float:
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    batch_size = max(1, 2048 // arguments.context)
    recipe = Recipe(
        position="sinusoidal",
        context=arguments.context,
        batch=batch_size,
        steps=arguments.steps,
        warmup=min(10, arguments.steps - 1),
        echo=0.0,
    )
    # One document: PyTorch's layers are given one mask for all windows.
    corpus = load_corpus()
    tokens = corpus.train[corpus.train != corpus.begin]
    batches = Batches(tokens, corpus.begin, recipe.context, recipe.batch)
    ours = new_model(recipe, corpus.vocabulary)
    plain = PlainDecoder(corpus.vocabulary, recipe).load(ours)
    optimizers = new_optimizer(ours, recipe), new_optimizer(plain, recipe)

    losses, seconds = [], []
    for step in range(recipe.steps):
        batch, rate = batches.at(step), recipe.rate(step)
        began = time.perf_counter()
        first = update(loss_of(ours, batch), ours, optimizers[0], rate)
        between = time.perf_counter()
        logits = plain(batch.inputs)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        second = update(loss, plain, optimizers[1], rate)
        ended = time.perf_counter()
        losses.append((first, second))
        seconds.append((between - began, ended - between))
        if step % max(1, recipe.steps // 10) == 0 or step == recipe.steps - 1:
            print(f"update {step + 1:>5}   heedful {first:.4f}   torch {second:.4f}", flush=True)
    report(recipe, losses, seconds)


def report(recipe: Recipe, losses: list[tuple[float, float]], seconds: list[tuple[float, float]]) -> None:
    warm = seconds[len(seconds) // 10 :]
    medians = [statistics.median(column) for column in zip(*warm, strict=True)]
    ratio = statistics.median(theirs / ours for ours, theirs in warm)
    differences = [abs(first - second) for first, second in losses]
    last = losses[-max(1, len(losses) // 10) :]
    means = [statistics.mean(column) for column in zip(*last, strict=True)]
    size = sum(parameter.numel() for parameter in new_model(recipe, 257).parameters())
    print(
        f"\n{size:,} parameters, context {recipe.context}, {recipe.tokens_per_step} tokens per update, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}\n"
        f"difference of losses at the same update: {max(differences[:50]):.1e} nats at most in the first 50, "
        f"{max(differences):.1e} at all; means of the last {len(last)}: {means[0]:.4f} and {means[1]:.4f}\n"
        f"tokens per second: heedful {recipe.tokens_per_step / medians[0]:,.0f}, "
        f"torch {recipe.tokens_per_step / medians[1]:,.0f}, ratio {ratio:.2f}"
    )


if __name__ == "__main__":
    main()
