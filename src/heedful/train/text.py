"""From files to tokens: documents, a tokenizer, and the part held out for evaluation."""

import gzip
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor

from heedful.train.problems import TextProblem
from heedful.train.recipe import Kind

BEGIN = "<|begin|>"
UNKNOWN = "[UNK]"
DEFAULT_TEXT = "Pride and Prejudice"
# Three empty lines or more, as between the chapters of the embedded novel.
SEPARATOR = r"\n(?:[ \t]*\n){3,}"
PIECE = 100_000


@dataclass(frozen=True)
class Corpus:
    """A text, ready for training.

    Attributes:
        name: What to call it.
        sha256: Of all its documents, so that a run can tell whether it continues on the same text.
        documents: Number of documents.
        tokenizer: Turns text into ids; begins each document with a mark.
        train: Ids to learn from, one dimension, int32.
        held_out: Ids to evaluate on.
    """

    name: str
    sha256: str
    documents: int
    tokenizer: Tokenizer
    train: Tensor
    held_out: Tensor

    @property
    def begin(self) -> int:
        """Id of the mark that begins a document."""
        return _begin(self.tokenizer)

    @property
    def vocabulary(self) -> int:
        """Number of different ids."""
        return self.tokenizer.get_vocab_size()


def load_corpus(paths: Sequence[str | Path] = (), *, kind: Kind = "bytes", held_out: float = 0.1) -> Corpus:
    """Read documents, make a tokenizer and hold the end of the text out.

    Args:
        paths: UTF-8 text files. Without any, the novel that comes with the package.
        kind: "bytes" (any text, 257 ids) or "characters" (those that the text has).
        held_out: Share of the tokens, from the end, that is kept for evaluation.

    Raises:
        TextProblem: A file is missing, empty, or not UTF-8.

    Cost:
        About a second per million characters; 4 bytes per token.
    """
    documents = read_documents(paths)
    tokenizer = byte_tokenizer() if kind == "bytes" else character_tokenizer(documents)
    tokens = encode(tokenizer, documents)
    cut = len(tokens) - round(len(tokens) * held_out)
    digest = hashlib.sha256("\0".join(documents).encode())
    name = ", ".join(Path(path).name for path in paths) or DEFAULT_TEXT
    return Corpus(name, digest.hexdigest(), len(documents), tokenizer, tokens[:cut], tokens[cut:])


def read_documents(paths: Sequence[str | Path] = ()) -> list[str]:
    """The documents in some files, in order. Three empty lines or more begin a new one, and so does each file."""
    texts = [_read(Path(path)) for path in paths] or [_embedded()]
    documents = [part.strip("\n") for text in texts for part in re.split(SEPARATOR, text)]
    return [document for document in documents if document.strip()]


def byte_tokenizer() -> Tokenizer:
    """One id for each of the 256 bytes of UTF-8, and one for the mark that begins a document."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: number for number, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _with_begin(tokenizer)


def character_tokenizer(documents: Sequence[str]) -> Tokenizer:
    """One id for each character of the documents, one for any other, and one for the mark that begins a document."""
    characters = sorted(set().union(*documents))
    vocabulary = {token: number for number, token in enumerate([UNKNOWN, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return _with_begin(tokenizer)


def encode(tokenizer: Tokenizer, documents: Sequence[str]) -> Tensor:
    """All documents in one row of ids, (tokens,) int32, each begun by its mark."""
    begin = torch.tensor([_begin(tokenizer)], dtype=torch.int32)
    parts = []
    for document in documents:
        parts.append(begin)
        for start in range(0, len(document), PIECE):
            ids = tokenizer.encode(document[start : start + PIECE], add_special_tokens=False).ids
            parts.append(torch.tensor(ids, dtype=torch.int32))
    return torch.cat(parts)


def bigram_cross_entropy(train: Tensor, held_out: Tensor, size: int) -> float:
    """Nats per token that a table of pairs needs for the held-out ids: what a model without attention can do.

    The table is smoothed by the best of several added counts, chosen on the held-out ids in its favor.

    Args:
        train: Ids to count, (tokens,).
        held_out: Ids to predict, each from the one before.
        size: Number of different ids.

    Cost:
        size² numbers in memory; a pass over both texts.
    """
    train, held_out = train.long(), held_out.long()
    counts = torch.bincount(train[:-1] * size + train[1:], minlength=size * size).view(size, size).double()
    losses = []
    for added in (1.0, 0.3, 0.1, 0.03, 0.01, 0.003):
        chances = (counts + added) / (counts.sum(1, keepdim=True) + added * size)
        losses.append(-chances[held_out[:-1], held_out[1:]].log().mean().item())
    return min(losses)


def require_length(corpus: Corpus, context: int) -> None:
    """Refuse a text with less than one window of `context` tokens to learn from or to evaluate on."""
    shortest = min(len(corpus.train), len(corpus.held_out))
    if shortest > context:
        return
    total = len(corpus.train) + len(corpus.held_out)
    advice = (
        f"Give more text, or a shorter context: --context {shortest - 1}."
        if shortest > 8
        else "Give more text."
    )
    raise TextProblem(
        f"{corpus.name} is too short: {total} tokens, of which {len(corpus.train)} are to learn from and "
        f"{len(corpus.held_out)} held out.\n"
        f"A context of {context} needs at least {context + 1} of each. {advice}"
    )


def _with_begin(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([BEGIN])
    mark = (BEGIN, _begin(tokenizer))
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[mark])
    return tokenizer


def _begin(tokenizer: Tokenizer) -> int:
    begin = tokenizer.token_to_id(BEGIN)
    if begin is None:
        raise ValueError(f"The tokenizer has no {BEGIN}.")
    return begin


def _embedded() -> str:
    return gzip.decompress(files("heedful.train").joinpath("data/pride.txt.gz").read_bytes()).decode()


def _read(path: Path) -> str:
    if path.is_dir():
        raise TextProblem(
            f"{path} is a folder. Give its text files: --text {path / 'one.txt'} --text {path / 'two.txt'}"
        )
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise TextProblem(f"There is no file {path}.") from None
    except OSError as error:
        raise TextProblem(f"{path} can't be read: {error.strerror}.") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextProblem(
            f"{path} is not UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start}.\n"
            f"If it is text in another encoding, convert it: iconv -f latin1 -t utf-8 {path} > utf8.txt"
        ) from None
    if not text.strip():
        raise TextProblem(f"{path} is empty: there is nothing to learn from.")
    return text.replace("\r\n", "\n")
