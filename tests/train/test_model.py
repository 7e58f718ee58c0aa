"""The decoder against PyTorch's own encoder stack, and its generation against a full run."""

import pytest
import torch
from torch import nn

import heedful
from heedful import masks
from heedful.positions import Sinusoidal
from heedful.train.batches import Batches
from heedful.train.learning import loss_of, new_model, new_optimizer

VOCABULARY, LENGTH = 29, 20
POSITIONS = ["rotary", "alibi", "sinusoidal", "learned", "none"]


class PlainDecoder(nn.Module):
    """The same model out of PyTorch's parts, for the comparison only."""

    def __init__(self, width, heads, layers):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.position = Sinusoidal()
        self.stack = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        states = self.stack(
            self.position(self.embedding(tokens) * self.embedding.embedding_dim**0.5), mask, is_causal=True
        )
        return states @ self.embedding.weight.T

    def load(self, model):
        """Take the weights of a `Decoder`."""
        self.embedding.load_state_dict(model.embedding.state_dict())
        self.stack.norm.load_state_dict(model.norm.state_dict())
        for layer, block in zip(self.stack.layers, model.blocks, strict=True):
            layer.self_attn.load_state_dict(block.attention.to_torch().state_dict())
            layer.norm1.load_state_dict(block.attention_norm.state_dict())
            layer.norm2.load_state_dict(block.feedforward_norm.state_dict())
            layer.linear1.load_state_dict(block.feedforward[0].state_dict())
            layer.linear2.load_state_dict(block.feedforward[2].state_dict())
        return self


def test_trains_like_pytorchs_own_layers_step_for_step(sizes):
    """Equal weights at the start, equal data: the losses of 25 updates agree to rounding."""
    chosen = sizes(position="sinusoidal", lr=3e-3)
    model = new_model(chosen, VOCABULARY)
    plain = PlainDecoder(24, 4, 3).load(model)
    optimizers = [new_optimizer(each, chosen) for each in (model, plain)]
    tokens = torch.randint(0, 28, (3000,)).cumsum(0).remainder(28).int()
    batches = Batches(tokens, 28, LENGTH, 5)
    losses = []
    for step in range(25):
        batch = batches.at(step)
        ours = loss_of(model, batch)
        theirs = nn.functional.cross_entropy(plain(batch.inputs).flatten(0, 1), batch.targets.flatten())
        for loss, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append((ours.item(), theirs.item()))
    ours, theirs = zip(*losses, strict=True)
    assert ours == pytest.approx(theirs, rel=2e-5)
    assert ours[-1] < ours[0]


@pytest.mark.parametrize("position", POSITIONS)
def test_a_token_is_not_influenced_by_later_ones(model_for, position):
    model = model_for(position=position)
    tokens = torch.randint(0, VOCABULARY, (2, LENGTH))
    changed = tokens.clone()
    changed[:, 11:] = (changed[:, 11:] + 5) % VOCABULARY
    before, after = model(tokens).logits, model(changed).logits
    torch.testing.assert_close(before[:, :11], after[:, :11])
    assert (before[:, 11:] - after[:, 11:]).abs().amax() > 0.01


@pytest.mark.parametrize("position", POSITIONS)
def test_packed_documents_are_read_as_if_each_stood_alone(model_for, position):
    model = model_for(position=position)
    first, second = torch.randint(0, 28, (2, 8)), torch.randint(0, 28, (2, 12))
    first[:, 0] = second[:, 0] = 28
    (batch,) = Batches(torch.cat([first[0], second[0], first[:1, 0]]).int(), 28, LENGTH, 1).in_order()
    packed = model(batch.inputs, batch.mask, positions=batch.positions).logits
    torch.testing.assert_close(packed[:, :8], model(first[:1]).logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(packed[:, 8:], model(second[:1]).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("num_kv_heads", [None, 2])
def test_generation_with_a_cache_takes_the_likeliest_tokens_of_full_runs(model_for, position, num_kv_heads):
    model = model_for(position=position, num_kv_heads=num_kv_heads)
    start = torch.randint(0, VOCABULARY, (3, 6))
    generated = model.generate(start, 12, temperature=0)
    assert generated.shape == (3, 18)
    expected = start
    for _ in range(12):
        expected = torch.cat([expected, model(expected).logits[:, -1].argmax(-1, keepdim=True)], 1)
    assert torch.equal(generated, expected)


def test_generation_repeats_with_its_generator(model_for):
    model = model_for()
    start = torch.randint(0, VOCABULARY, (2, 3))
    first, again, other = (
        model.generate(start, 14, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_asking_the_weights_changes_nothing(model_for):
    model = model_for(num_kv_heads=2)
    tokens = torch.randint(0, VOCABULARY, (2, LENGTH))
    silent, asked = model(tokens), model(tokens, reduce=(heedful.Entropy(), heedful.MaxLogit()))
    assert torch.equal(silent.logits, asked.logits)
    assert [tuple(weights.shape) for weights in asked.weights] == [(2, 4, LENGTH, LENGTH)] * 3
    for weights in asked.weights:
        full = weights.full()
        torch.testing.assert_close(weights.entropy(), torch.special.entr(full).sum(-1), rtol=1e-4, atol=1e-5)


def test_sizes_are_those_of_the_sizes(sizes):
    model = new_model(sizes(num_kv_heads=2), VOCABULARY)
    head, width = 6, 24
    attention = 2 * (width * width + width) + 2 * (2 * head * width + 2 * head)
    feedforward = 8 * width * width + 5 * width
    expected = VOCABULARY * width + 3 * (attention + feedforward + 4 * width) + 2 * width
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_the_first_loss_is_that_of_a_guess(sizes):
    """Small start values: every token is about equally likely."""
    tokens = torch.randint(0, VOCABULARY, (4, LENGTH))
    logits = new_model(sizes(), VOCABULARY)(tokens).logits
    loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(torch.tensor(float(VOCABULARY)).log().item(), abs=0.05)


def test_matrices_decay_and_vectors_do_not(sizes):
    model = new_model(sizes(), VOCABULARY)
    decayed, kept = new_optimizer(model, sizes(weight_decay=0.3)).param_groups
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.3, 0.0)
    assert all(parameter.dim() == 2 for parameter in decayed["params"])
    assert all(parameter.dim() == 1 for parameter in kept["params"])
    assert len(decayed["params"]) + len(kept["params"]) == len(list(model.parameters()))


def test_an_own_mask_takes_the_place_of_the_causal_one(model_for):
    model = model_for()
    tokens = torch.randint(0, VOCABULARY, (2, LENGTH))
    narrow = model(tokens, masks.window(2)).weights[0].full()
    assert torch.equal(narrow.tril(-2), torch.zeros_like(narrow))


@pytest.mark.parametrize("position", POSITIONS)
def test_every_position_lets_tokens_through(sizes, position):
    """Under sinusoids of size 1, embeddings of 0.02 were lost: a run never got below the loss of single tokens."""
    chosen = sizes(position=position, lr=0.01)
    model = new_model(chosen, VOCABULARY)
    optimizer = new_optimizer(model, chosen)
    tokens = (torch.arange(4000) * 5 % 28).int()  # each token follows from the one before
    batches = Batches(tokens, 28, LENGTH, 5)
    for step in range(60):
        loss = loss_of(model, batches.at(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 1.0
