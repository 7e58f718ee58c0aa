"""What a recipe makes: the model at its start, the optimizer, the loss."""

from typing import Any

import torch
from torch import Tensor, nn

from heedful.train.batches import Batch, derived_seed
from heedful.train.model import Decoder
from heedful.train.recipe import Recipe


def new_model(recipe: Recipe, vocabulary: int) -> Decoder:
    """The model before its first update: the seed decides its weights, and torch's generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(recipe.seed, "weights"))
        return Decoder(vocabulary, recipe)


def new_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW, which decays matrices and leaves vectors alone."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.base_rate, betas=(0.9, 0.99), fused=True)


def loss_of(model: Decoder, batch: Batch, dtype: torch.dtype = torch.float32) -> Tensor:
    """Mean cross-entropy of the next token, in nats; matrices are multiplied in `dtype`."""
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        logits = model(batch.inputs, batch.mask, positions=batch.positions).logits
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), batch.targets.flatten())


def compute_dtype(precision: str) -> torch.dtype:
    """The type that matrices are multiplied in."""
    if precision == "auto":
        return torch.bfloat16 if bfloat16_is_fast() else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]


def bfloat16_is_fast() -> bool:
    """Whether this CPU multiplies bfloat16 itself (AVX-512 BF16, AMX, or Arm's BF16)."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
