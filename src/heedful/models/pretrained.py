"""Models of transformers as something that reads texts: run as they are, and watched."""

import inspect
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from heedful import Weights, huggingface
from heedful.models import ModelNotInstalled, ModelUnreadable
from heedful.models.reading import Reader
from heedful.watching import AttentionNotSeen, watch

# Files that a tokenizer comes in.
TOKENIZERS = ("tokenizer*", "vocab*", "*.model")


def load(source: str, name: str) -> Reader:
    """A reader of the model in a folder or in the cache.

    Args:
        source: The folder, or the name of a downloaded model.
        name: What to call it.

    Raises:
        ModelNotInstalled: transformers is missing.
        ModelUnreadable: The files are damaged or incomplete, or it is no model whose attention can be seen.

    Cost: the model in memory, in the dtype of its files.
    """
    folder = Path(source)
    if folder.is_dir() and not any(each for pattern in TOKENIZERS for each in folder.glob(pattern)):
        raise ModelUnreadable(
            f"{source} has a model, but no tokenizer to read a text with. Save it there too: "
            f"tokenizer.save_pretrained({source!r})."
        )
    try:
        model, tokenizer, missing = huggingface.load(source)
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise ModelUnreadable(_said(f"{source} cannot be loaded", error)) from None
        raise ModelNotInstalled(
            f"{source} is a model for transformers. Install that with:\n  pip install transformers"
        ) from None
    except Exception as error:  # transformers and what it stands on raise plain ones too
        raise ModelUnreadable(_said(f"{source} cannot be loaded", error)) from None
    if model.main_input_name != "input_ids":
        raise ModelUnreadable(f"{source} reads {model.main_input_name}, not a text: {type(model).__name__}.")
    if missing:
        raise ModelUnreadable(
            f"{source} is incomplete: its files lack {len(missing)} tensors of {type(model).__name__}, such as "
            f"{missing[0]}. What is lacking would be random numbers."
        )
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelUnreadable(
            f"{source} has a tokenizer that does not tell which part of the text a token stands for: "
            f"{type(tokenizer).__name__}."
        )
    backend.no_truncation()
    backend.no_padding()
    watched = Watched(model.get_encoder() if model.config.is_encoder_decoder else model)
    return Reader(name, watched, backend, _max_tokens(model, tokenizer), causal=None)


class Read(NamedTuple):
    """What `Watched` returns: logits of the token after the text, (1, ..., vocabulary), and each layer's weights."""

    logits: Tensor | None
    weights: list[Weights]


class Watched(nn.Module):
    """A model of transformers that gives its weights. Its own attention runs if heedful's cannot be switched on."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.kind = type(model).__name__
        self.predicts = "CausalLM" in self.kind or "LMHead" in self.kind
        wanted = {"use_cache": False, "logits_to_keep": 1}
        known = inspect.signature(model.forward).parameters
        self.options = {option: value for option, value in wanted.items() if option in known}
        model.config.output_attentions = False  # matrices, for which transformers would insist on "eager"
        with suppress(TypeError, ValueError):  # watching will tell whether its own attention can be seen
            huggingface.use(model)

    def forward(self, ids: Tensor) -> Read:
        """Read token ids (1, L)."""
        output, calls = self._run(ids)
        L = ids.shape[1]
        shapes = {tuple(each.shape) for each in calls}
        if not shapes:
            raise ModelUnreadable(f"{self.kind} has no attention that can be seen.")
        if len(shapes) > 1 or next(iter(shapes))[2:] != (L, L):
            found = ", ".join(map(str, sorted(shapes)))
            raise ModelUnreadable(
                f"{self.kind} is not a stack of like layers of self-attention: on {L} tokens its weights are {found}."
            )
        return Read(output.logits if self.predicts else None, calls)

    def _run(self, ids: Tensor) -> tuple[Any, list[Weights]]:
        seen = output = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AttentionNotSeen)
            try:
                with watch(self.model) as seen:
                    output = self.model(input_ids=ids, **self.options)
            except Exception as error:  # whatever the model's own code raises
                if seen is None or not seen.missed:
                    raise ModelUnreadable(_said(f"{self.kind} cannot read a text", error)) from None
        if seen.missed:
            raise ModelUnreadable(
                f"{self.kind} cannot be looked at: {len(seen.missed)} of its modules, such as "
                f"{next(iter(seen.missed))!r}, compute their attention where it cannot be seen, with a softmax of "
                "their own or a kernel from outside PyTorch."
            )
        return output, [weights for calls in seen.values() for weights in calls]


def _max_tokens(model: Any, tokenizer: Any) -> int:
    """The most tokens that the model and its tokenizer are made for."""
    config = model.config.get_text_config()
    names = ("max_position_embeddings", "n_positions", "max_source_positions")
    limits = [getattr(config, name, None) for name in names] + [tokenizer.model_max_length]
    for name, module in model.named_modules():
        # RoBERTa and its kin number positions from the padding's number on.
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    return min([limit for limit in limits if isinstance(limit, int) and limit > 0], default=2**20)


def _said(what: str, error: Exception) -> str:
    """What failed, and the first paragraph of what was said about it."""
    told = " ".join(str(error).strip().split("\n\n")[0].split()) or type(error).__name__
    return f"{what}. {type(error).__name__}: {told}"
