"""From files to documents, ids and a baseline."""

import math
import re

import pytest
import torch

from heedful.train.problems import TextProblem
from heedful.train.text import (
    BEGIN,
    bigram_cross_entropy,
    byte_tokenizer,
    character_tokenizer,
    encode,
    load_corpus,
    read_documents,
    require_length,
)


def problem(call):
    with pytest.raises(TextProblem) as caught:
        call()
    return str(caught.value)


def test_the_embedded_text_is_the_whole_novel_in_chapters():
    documents = read_documents()
    chapters = [document for document in documents if re.match(r"Chapter \d+\n", document)]
    assert len(chapters) == 61
    assert "It is a truth universally acknowledged" in documents[1]
    assert documents[-1].endswith("had been the means of uniting them.")
    assert load_corpus().sha256 == "80c58c95b2e58be853330cc5ad837f3d0da0428aa08cdfb48cd91e87469d46f8"


def test_documents_begin_after_three_empty_lines_and_with_each_file(tmp_path):
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.write_text("one\n\n\n\ntwo\n \n\nstill two\n\n\n\n\n\nthree\n")
    second.write_bytes(b"\xef\xbb\xbffour\r\nmore\r\n")
    assert read_documents([first, second]) == ["one", "two\n \n\nstill two", "three", "four\nmore"]


@pytest.mark.parametrize("text", ["plain", "naïve façade — 東京 🦊\n\ttabs  and   spaces ", "\x00\x7f"])
def test_bytes_spell_any_text(text):
    tokenizer = byte_tokenizer()
    assert tokenizer.get_vocab_size() == 257
    ids = tokenizer.encode(text).ids
    assert ids[0] == tokenizer.token_to_id(BEGIN)
    assert len(ids) == 1 + len(text.encode())
    assert tokenizer.decode(ids) == text


def test_characters_spell_the_text_they_come_from_and_mark_others():
    tokenizer = character_tokenizer(["héllo\n", "wörld"])
    assert tokenizer.get_vocab_size() == len(set("héllo\nwörld")) + 2
    assert tokenizer.decode(tokenizer.encode("hör\n").ids) == "hör\n"
    assert tokenizer.encode("hex").tokens == [BEGIN, "h", "[UNK]", "[UNK]"]


def test_every_document_is_begun_by_its_mark_however_long():
    tokenizer = byte_tokenizer()
    long = "ab" * 120_000
    ids = encode(tokenizer, ["xyz", long])
    begin = tokenizer.token_to_id(BEGIN)
    assert (ids == begin).nonzero().flatten().tolist() == [0, 4]
    assert tokenizer.decode(ids[5:].tolist()) == long


def test_the_end_is_held_out(text_file):
    corpus = load_corpus([text_file], held_out=0.25)
    whole = encode(byte_tokenizer(), read_documents([text_file]))
    assert torch.equal(torch.cat([corpus.train, corpus.held_out]), whole)
    assert len(corpus.held_out) == round(len(whole) / 4)
    assert (corpus.name, corpus.documents) == ("story.txt", 3)


def test_bigram_loss_is_that_of_the_table_of_pairs():
    generator = torch.Generator().manual_seed(5)
    chain = torch.rand(7, 7, generator=generator) ** 6 + 1e-3
    chain /= chain.sum(1, keepdim=True)
    ids = [0]
    for _ in range(12_000):
        ids.append(int(torch.multinomial(chain[ids[-1]], 1, generator=generator)))
    ids = torch.tensor(ids, dtype=torch.int32)
    stationary = torch.linalg.matrix_power(chain.double(), 200)[0]
    entropy = -(stationary[:, None] * chain * chain.log()).sum().item()
    assert bigram_cross_entropy(ids[:9_000], ids[9_000:], 7) == pytest.approx(entropy, abs=0.05)


def test_bigram_loss_of_pairs_never_seen_is_finite():
    train, held_out = torch.zeros(50, dtype=torch.int32), torch.tensor([1, 2, 1, 2], dtype=torch.int32)
    assert bigram_cross_entropy(train, held_out, 4) == pytest.approx(math.log(4))


def test_files_that_cannot_be_read(tmp_path):
    missing, folder, empty = tmp_path / "none.txt", tmp_path, tmp_path / "empty.txt"
    empty.write_text(" \n\n")
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9")
    assert problem(lambda: read_documents([missing])) == f"There is no file {missing}."
    assert problem(lambda: read_documents([folder])) == (
        f"{folder} is a folder. Give its text files: --text {folder / 'one.txt'} --text {folder / 'two.txt'}"
    )
    assert problem(lambda: read_documents([empty])) == f"{empty} is empty: there is nothing to learn from."
    assert problem(lambda: read_documents([latin])) == (
        f"{latin} is not UTF-8 text: byte 0xe9 at offset 3.\n"
        f"If it is text in another encoding, convert it: iconv -f latin1 -t utf-8 {latin} > utf8.txt"
    )


def test_a_text_too_short_for_the_context(tmp_path):
    tiny = tmp_path / "tiny.txt"
    tiny.write_text("x" * 199)
    corpus = load_corpus([tiny])
    require_length(corpus, 19)
    assert problem(lambda: require_length(corpus, 20)) == (
        "tiny.txt is too short: 200 tokens, of which 180 are to learn from and 20 held out.\n"
        "A context of 20 needs at least 21 of each. Give more text, or a shorter context: --context 19."
    )
    tiny.write_text("x" * 9)
    assert problem(lambda: require_length(load_corpus([tiny]), 20)) == (
        "tiny.txt is too short: 10 tokens, of which 9 are to learn from and 1 held out.\n"
        "A context of 20 needs at least 21 of each. Give more text."
    )
