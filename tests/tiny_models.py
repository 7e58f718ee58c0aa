"""Twenty-two architectures of transformers with random weights, small and fast, and their inputs."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

DECODER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "vocab_size": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENCODER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "vocab_size": 64,
    "pad_token_id": 0,
}
SPEECH = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


class Tiny(NamedTuple):
    """How to make one model: classes by name, settings, and what it reads ("text", "pixels", "speech", "pairs")."""

    model: str
    config: str
    settings: dict[str, Any]
    reads: str = "text"
    causal: bool = True


def _decoder(name: str, config: str | None = None, **settings: Any) -> Tiny:
    return Tiny(f"{name}ForCausalLM", config or f"{name}Config", {**DECODER, **settings})


MODELS: dict[str, Tiny] = {
    "llama": _decoder("Llama"),
    "mistral": _decoder("Mistral", sliding_window=3),
    "qwen2": _decoder("Qwen2"),
    "qwen3": _decoder("Qwen3"),
    "gemma2": _decoder("Gemma2", sliding_window=3, query_pre_attn_scalar=8, attn_logit_softcapping=50.0),
    "gemma3": _decoder(
        "Gemma3", "Gemma3TextConfig", sliding_window=3, query_pre_attn_scalar=8, num_hidden_layers=6
    ),
    "gpt_oss": _decoder("GptOss", sliding_window=3, num_local_experts=2, num_experts_per_tok=1),
    "phi3": Tiny("Phi3ForCausalLM", "Phi3Config", {k: v for k, v in DECODER.items() if k != "head_dim"}),
    "gpt_neox": Tiny("GPTNeoXForCausalLM", "GPTNeoXConfig", ENCODER),
    "deepseek_v3": _decoder(
        "DeepseekV3",
        head_dim=4,
        num_key_value_heads=4,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=6,
        n_routed_experts=4,
        num_experts_per_tok=1,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        moe_intermediate_size=16,
    ),
    "gpt2": Tiny(
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "vocab_size": 64,
            "n_positions": 64,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "bert": Tiny("BertModel", "BertConfig", ENCODER, causal=False),
    "distilbert": Tiny(
        "DistilBertModel",
        "DistilBertConfig",
        {
            "vocab_size": 64,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 48,
            "max_position_embeddings": 64,
        },
        causal=False,
    ),
    "albert": Tiny("AlbertModel", "AlbertConfig", {**ENCODER, "embedding_size": 16}, causal=False),
    "esm": Tiny("EsmModel", "EsmConfig", {**ENCODER, "mask_token_id": 3}, causal=False),
    "modernbert": Tiny(
        "ModernBertModel",
        "ModernBertConfig",
        {**ENCODER, "num_hidden_layers": 4, "local_attention": 4, "cls_token_id": 1, "sep_token_id": 2}
        | {"bos_token_id": 1, "eos_token_id": 2},
        causal=False,
    ),
    "clip_text": Tiny("CLIPTextModel", "CLIPTextConfig", {**ENCODER, "bos_token_id": 1, "eos_token_id": 2}),
    "vit": Tiny(
        "ViTModel",
        "ViTConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "image_size": 8,
            "patch_size": 4,
        },
        reads="pixels",
        causal=False,
    ),
    "t5": Tiny(
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
        | {"decoder_start_token_id": 0},
        reads="pairs",
    ),
    "bart": Tiny(
        "BartForConditionalGeneration", "BartConfig", {**SPEECH, "max_position_embeddings": 64}, reads="pairs"
    ),
    "whisper": Tiny(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {**SPEECH, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 32},
        reads="speech",
    ),
    "olmo2": _decoder("Olmo2"),
}
DECODERS = [
    name for name, tiny in MODELS.items() if tiny.reads == "text" and tiny.causal and name != "clip_text"
]
PADDED = [name for name, tiny in MODELS.items() if tiny.reads in ("text", "pairs")]


def make(name: str, dtype: torch.dtype = torch.float32, implementation: str = "sdpa") -> nn.Module:
    """The model, in evaluation mode; the same weights every time. Weights are large enough to make heads differ."""
    import transformers

    if name == "t5" and tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 20):
        pytest.skip("before transformers 5.20, T5 takes a softmax of its own")
    tiny = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, tiny.config)(**tiny.settings, attn_implementation=implementation)
    model = getattr(transformers, tiny.model)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if (
                parameter.dim() > 1 and name != "t5"
            ):  # T5 starts with large weights, and its scores are not scaled
                parameter.mul_(4)
    if hasattr(model.config, "num_experts_per_tok"):
        model.set_experts_implementation("eager")  # the default has no float64
    return model.eval().to(dtype)


def inputs(name: str, padding: str | None = None, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Something to read: three texts of 9 tokens, padded on the left or right if wanted, or pictures, or sounds."""
    reads = MODELS[name].reads
    torch.manual_seed(1)
    if reads == "pixels":
        return {"pixel_values": torch.randn(3, 3, 8, 8, dtype=dtype)}
    if reads == "speech":
        return {
            "input_features": torch.randn(3, 8, 20, dtype=dtype),
            "decoder_input_ids": torch.randint(3, 64, (3, 5)),
        }
    ids = torch.randint(4, 64, (3, 9))
    ids[:, -1] = 2
    given = {"input_ids": ids}
    if padding is not None:
        keep = torch.ones_like(ids)
        for item, missing in enumerate((0, 2, 4)):
            keep[item, : missing if padding == "left" else 0] = 0
            keep[item, 9 - missing if padding == "right" else 9 :] = 0
        given = {"input_ids": ids * keep, "attention_mask": keep}
    if reads == "pairs":
        given["decoder_input_ids"] = torch.randint(4, 64, (3, 5))
    return given


def attentions(outputs: Any) -> tuple[Tensor, ...]:
    """All attentions of a call with `output_attentions=True`, in the order in which the modules ran."""
    if getattr(outputs, "decoder_attentions", None) is not None:
        pairs = zip(outputs.decoder_attentions, outputs.cross_attentions, strict=True)
        return (*outputs.encoder_attentions, *(each for pair in pairs for each in pair))
    return tuple(outputs.attentions)


def logits(outputs: Any) -> Tensor:
    """The numbers that a call is about."""
    return outputs.logits if hasattr(outputs, "logits") else outputs.last_hidden_state
