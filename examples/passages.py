"""Which passage of the prompt did an answer draw on? Attention from the answer to each passage, over all layers.

SmolLM2 reads three passages, a question and its answer. `ByKey` adds up the weight on each passage in one pass, without
a matrix; the first token, an attention sink that takes most of the weight, belongs to no passage. Many heads look at
whatever stands near, so each share is compared with the same passage's mean over all questions: 1.3 is 30 % more than
usual. This says where the model looked on this text, not why it answered.

Prints:

    asked for     answer                lighthouse      harbor      bakery
    the builder   Anna Voss                   1.32        0.77        0.81
    the cats      Salt and Pepper             0.91        1.50        0.83
    the bread     bread with walnuts          0.77        0.74        1.36
"""

from itertools import accumulate

import torch

import heedful
from heedful import ByKey, models

PASSAGES = {
    "lighthouse": "The lighthouse of Brill was built in 1871 by Anna Voss.\n",
    "harbor": "The harbor master keeps two grey cats named Salt and Pepper.\n",
    "bakery": "Every Friday the bakery on the square sells bread with walnuts.\n",
}
ASKED = {
    "the builder": ("Who built the lighthouse? The lighthouse was built by", " Anna Voss"),
    "the cats": ("What are the names of the cats? The cats are named", " Salt and Pepper"),
    "the bread": ("What does the bakery sell? The bakery sells", " bread with walnuts"),
}

reader = models.load("smollm2")
ends = list(accumulate(map(len, PASSAGES.values())))

shares = []
for question, answer in ASKED.values():
    tokens = reader.tokenize("".join(PASSAGES.values()) + question + answer)
    start = ends[-1] + len(question)
    group = [next((i for i, end in enumerate(ends) if token.stop <= end), -1) for token in tokens]
    group[0] = -1  # the sink
    ids = torch.tensor([[token.id for token in tokens]])

    with torch.no_grad(), heedful.watch(reader.model, ByKey(torch.tensor(group))) as seen:
        reader.model(ids)
    rows = [i - 1 for i, token in enumerate(tokens) if token.start >= start]  # row i - 1 gave token i
    (asked,) = seen.layers[0].kept
    mass = torch.stack([calls.reduce(asked)[0][0, :, rows] for calls in seen.layers]).mean((0, 1, 2))
    shares.append(mass / mass.sum())

print(f"{'asked for':<14}{'answer':<20}" + "".join(f"{name:>12}" for name in PASSAGES))
for (name, (_, answer)), share in zip(
    ASKED.items(), torch.stack(shares) / torch.stack(shares).mean(0), strict=True
):
    print(f"{name:<14}{answer.strip():<20}" + "".join(f"{x:>12.2f}" for x in share))
