"""When was each word said? Cross-attention of chosen heads, made into a path by dynamic time warping.

The decoder is Whisper-shaped: each token looks at its frames of sound in two of four heads. Only those two are asked,
of one layer; the rest of the model stays as it is. "the" is said twice, so the strongest frame alone would not do: the
path has to go forward. (openai/whisper reads its word times from cross-attention like this.) Times are right to a frame
of 0.02 seconds.

Prints:

    word   starts   said
    the      0.00   0.00
    cat      0.12   0.12
    sat      0.32   0.34
    on       0.58   0.60
    the      0.66   0.68
    mat      0.78   0.80
"""

import torch
from torch import nn

# A library's: numpy, numba and librosa have others.
from transformers.models.whisper.generation_whisper import _dynamic_time_warping

import heedful

torch.manual_seed(0)
WORDS = ["the", "cat", "sat", "on", "the", "mat"]
FRAMES = [6, 11, 13, 4, 6, 15]  # how long each word takes, in frames of 20 ms
WIDTH, HEADS, SECONDS = 64, 4, 0.02

words = {word: torch.randn(WIDTH) for word in WORDS}
sound = torch.stack([words[word] for word, frames in zip(WORDS, FRAMES, strict=True) for _ in range(frames)])
sound = sound + 0.3 * torch.randn_like(sound)
tokens = torch.stack([words[word] for word in WORDS])


class Decoder(nn.Module):
    """One layer: the tokens look at each other, then at the sound."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.encoder_attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        alignment = slice(WIDTH // 2, WIDTH)  # the channels of heads 2 and 3 compare words with sounds
        with torch.no_grad():
            for part in range(2):
                weight = self.encoder_attn.in_proj_weight[part * WIDTH : (part + 1) * WIDTH]
                weight[alignment] = torch.eye(WIDTH)[alignment]

    def forward(self, x: torch.Tensor, sound: torch.Tensor) -> torch.Tensor:
        x = x + 0.1 * self.self_attn(x, x, x, need_weights=False)[0]
        return x + self.encoder_attn(x, sound, sound, need_weights=False)[0]


model = Decoder().eval()
with torch.no_grad(), heedful.watch(model, layers="encoder_attn") as seen:
    model(tokens[None], sound[None])

alignment = seen["encoder_attn"][0, [2, 3]].full().mean(0)  # (tokens, frames)
token_of_step, frame_of_step = _dynamic_time_warping(-alignment.double().numpy())

print("word   starts   said")
said = 0
for i, (word, frames) in enumerate(zip(WORDS, FRAMES, strict=True)):
    starts = frame_of_step[token_of_step == i][0]
    print(f"{word:<8} {starts * SECONDS:.2f}   {said * SECONDS:.2f}")
    said += frames
