# ruff: noqa: RUF001
"""The terminal's picture, whole: every line as it is printed."""

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from heedful.heads import CLASSES
from heedful.models.reading import Following, Token
from heedful.view.build import picture_of
from heedful.view.terminal import COLORS, draw
from heedful.view.text import ASCII, UNICODE, glyphs_for
from view_example import cat_reading, reading_of, tokens_of

WIDE = """\
example   2 layers × 3 heads   11 tokens   attention weights

          0  1  2
layer 0  P▂ N▂ S▂
layer 1  B█▸X▅ U▂

P previous token  N next token  U itself  S first token  B broad  X mixed
▁ at one token to █ at all alike  ## continues a word

▸ Layer 1, head 1 gives 0.49 of its weight to the first token, 0.26 to others
within 5 tokens, 0.09 to tokens farther away, 0.07 to other special tokens and
punctuation. Its entropy is 0.67 of the largest possible.
On this text its class is X, mixed: nothing that has a class of its own stands
out.
Chosen from all 6 heads for the most telling link between words that are not
neighbors: "it" → "cat".

What each token looks at
Weight at least: ·· 0.01 ░░ 0.09 ▒▒ 0.25 ▓▓ 0.49 ██ 0.81
          0         5         10
 0 [CLS]  ▓▓···················· → [CLS] 0.58
 1 The    ▓▓···················· → [CLS] 0.58
 2 cat    ▓▓···················· → [CLS] 0.58
 3 sleep  ▓▓···················· → [CLS] 0.58
 4 ##s    ▓▓···················· → [CLS] 0.58
 5 as     ▓▓···················· → [CLS] 0.58
 6 it     ░░··▓▓················ → cat   0.65
 7 is     ▓▓···················· → [CLS] 0.58
 8 tired  ░░··▒▒░░░░············ → cat   0.47
 9 .      ▓▓···················· → [CLS] 0.58
10 [SEP]  ▓▓···················· → [CLS] 0.58

What "it" looks at
  ▃▃▃▃▃ ▁▁▁ ▆▆▆ ▂▂▂▂▂▁ ▁▁ ▁▁ ▁▁ ▁▁▁▁▁ ▁ ▁▁▁▁▁
  [CLS] The cat sleeps as it is tired . [SEP]
                          ^^

Strongest links of this head between words that are not neighbors
  "it" → "cat"     0.651 ██████████████████████████
  "tired" → "cat"  0.468 ██████████████████▊"""

NARROW = """\
example   2 layers x 3 heads   11 tokens
attention weights

     0  1  2
L0  P: N: S:
L1  B@>X+ U:

P previous token  N next token  U itself
S first token  B broad  X mixed
. at one token to @ at all alike
## continues a word

> Layer 1, head 1 gives 0.49 of its
weight to the first token, 0.26 to
others within 5 tokens, 0.09 to tokens
farther away, 0.07 to other special
tokens and punctuation. Its entropy is
0.67 of the largest possible.
On this text its class is X, mixed:
nothing that has a class of its own
stands out.
Chosen from the 3 heads of layer 1 for
the most telling link from this token:
"tired" -> "cat".

What each token looks at
. 0.01 : 0.09 + 0.25 # 0.49 @ 0.81
          0    5    10
 0 [CLS]  #.......... -> [CLS] 0.58
 1 The    #.......... -> [CLS] 0.58
 2 cat    #.......... -> [CLS] 0.58
 3 sleep  #.......... -> [CLS] 0.58
 4 ##s    #.......... -> [CLS] 0.58
 5 as     #.......... -> [CLS] 0.58
 6 it     :.#........ -> cat   0.65
 7 is     #.......... -> [CLS] 0.58
 8 tired  :.+::...... -> cat   0.47
 9 .      #.......... -> [CLS] 0.58
10 [SEP]  #.......... -> [CLS] 0.58

What "tired" looks at
  ===== ... +++ -----: .. .. .. ..... .
  [CLS] The cat sleeps as it is tired .
                                ^^^^^
  .....
  [SEP]

  "cat"     0.468 ##########
  "[CLS]"   0.198 ####
  "sleep"   0.109 ##
  "##s"     0.091 ##
  "[SEP]"   0.020
  "."       0.020
  "tired"   0.019
  "is"      0.019
  3 others  0.056 #

What looks at "tired"
  "[CLS]"  0.043 #
  "The"    0.043 #
  "cat"    0.043 #
  "sleep"  0.043 #
  "##s"    0.043 #
  "as"     0.043 #
  "is"     0.043 #
  "."      0.043 #"""


def drawn(picture, width=80, glyphs=UNICODE, encoding="utf-8"):
    return "\n".join(line.plain for line in draw(picture, width, glyphs, encoding))


def test_80_columns():
    assert drawn(picture_of(cat_reading())) == WIDE


def test_40_columns_in_ascii_from_a_token():
    picture = picture_of(cat_reading(), layer=1, token="tired")
    assert drawn(picture, 40, ASCII, "ascii") == NARROW


def test_120_columns_only_break_lines_less():
    narrow, wide = (" ".join(drawn(picture_of(cat_reading()), width).split()) for width in (80, 120))
    assert wide == narrow


def test_a_terminal_narrower_than_40_is_drawn_for_40():
    picture = picture_of(cat_reading())
    assert drawn(picture, 7) == drawn(picture, 40)


def test_one_of_a_kind_is_counted_as_one():
    picture = picture_of(reading_of(tokens_of("hi"), torch.ones(1, 1, 1, 1)))
    lines = drawn(picture).splitlines()
    assert lines[0] == "example   1 layer × 1 head   1 token   attention weights"
    assert lines[-3:] == ["  ██", "  hi", "  ^^"], "it has no links to list"


def test_many_heads_are_set_in_blocks():
    tokens = tokens_of("one", "two", "three")
    picture = picture_of(reading_of(tokens, torch.full((2, 30, 3, 3), 1 / 3)), layer=1, head=29)
    lines = drawn(picture, 60).splitlines()
    assert lines[2:10] == [
        "          0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16",
        "layer 0  B█ B█ B█ B█ B█ B█ B█ B█ B█ B█ B█ B█ B█ B█ B█ B█ B█",
        "layer 1  B█ B█ B█ B█ B█ B█ B█ B█ B█ B█ B█ B█ B█ B█ B█ B█ B█",
        "",
        "         17 18 19 20 21 22 23 24 25 26 27 28 29",
        "layer 0  B█ B█ B█ B█ B█ B█ B█ B█ B█ B█ B█ B█ B█",
        "layer 1  B█ B█ B█ B█ B█ B█ B█ B█ B█ B█ B█ B█▸B█",
        "",
    ]


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_a_shade_means_what_the_legend_says(glyphs):
    for sign, least in glyphs.shades_from():
        assert glyphs.shade(least + 1e-6) == sign
        assert least == 0 or glyphs.shade(least - 1e-6) != sign


@pytest.mark.parametrize("width", [40, 55, 56, 100])
def test_the_legend_of_shades_takes_one_line(width):
    words = "Weight at least: " if width >= 56 else ""
    lines = drawn(picture_of(reading_of(tokens_of("a", "b"), torch.rand(1, 1, 2, 2).softmax(-1))), width)
    assert f"\n{words}·· 0.01 ░░ 0.09 ▒▒ 0.25 ▓▓ 0.49 ██ 0.81\n" in lines


def test_more_tokens_than_fit_are_told_in_words():
    """60 tokens, each but the first two looking at the token two before it."""
    tokens = tokens_of(*(f"w{i}" for i in range(60)))
    weights = torch.full((60, 60), 0.1 / 60)
    weights[torch.arange(2, 60), torch.arange(58)] += 0.9 - torch.arange(58) / 1000
    weights[:2] = 1 / 60
    lines = drawn(picture_of(reading_of(tokens, weights[None, None])), 80).splitlines()
    start = lines.index("What each token looks at")
    assert lines[start + 1] == " 2 w2   w0 0.90 · others 0.10"
    assert lines[start + 20] == "21 w21  w19 0.90 · others 0.10"
    assert lines[start + 21] == "40 more tokens look less clearly at another word."
    assert lines[start + 22] == ""


def test_a_head_with_a_class_says_what_speaks_for_it():
    for head, sentence in {
        (
            0,
            0,
        ): "On this text its class is P, previous token: 0.91 of the weight, 0.09 by chance, over the 9 tokens "
        "that have one to look at.",
        (1, 0): "On this text its class is B, broad: an entropy of 0.9 or more of the largest possible.",
    }.items():
        assert sentence in " ".join(drawn(picture_of(cat_reading(), *head)).split())


def test_every_class_has_a_color_or_none_on_purpose():
    letters = {letter for letter, _ in CLASSES.values()}
    assert letters - set(COLORS) == {"X"}
    assert set(COLORS) <= letters


def test_what_may_follow_is_told_last():
    following = Following(" far", 0.6), Following("\n", 0.25), Following(" ", 0.1), Following("日", 0.05)
    picture = picture_of(replace(cat_reading(), following=following))
    assert drawn(picture).splitlines()[-5:] == [
        "What follows the text, as example expects it",
        '  " far"  0.600 ████████████████████████',
        '  "⏎"     0.250 ██████████',
        '  "␠"     0.100 ████',
        '  "日"    0.050 ██',
    ]
    assert drawn(picture, 80, ASCII, "ascii").splitlines()[-1].startswith(r'  "\u65e5"  0.050')


def test_a_sink_that_is_set_aside_is_said_to_be():
    picture = picture_of(cat_reading().without_sink())
    lines = drawn(picture).splitlines()
    assert lines[1] == "The first token is set aside: its weight is shared out among the others."
    weights = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 1 / 3], [0.2, 0.2, 0.6]]).expand(1, 2, 3, 3)
    causal = reading_of(tokens_of("a", "cat", "sat"), weights, causal=True)
    lines = drawn(picture_of(causal.without_sink())).splitlines()
    start = lines.index("What each token looks at")
    assert lines[start + 3 : start + 6] == ["0 a", "1 cat    ██   → cat 1.00", "2 sat    ░░▓▓ → sat 0.75"]


def test_single_characters_are_set_as_text():
    """Byte by byte: no mark that each continues the last, and a space stands for itself."""
    tokens = tuple(
        Token(character, ord(character), i, i + 1, special=False, continues=i > 0 and character != " ")
        for i, character in enumerate("the cat sat")
    )
    lines = drawn(picture_of(reading_of(tokens, torch.rand(1, 1, 11, 11).softmax(-1)), token=4)).splitlines()
    assert "  the cat sat" in lines
    assert "##" not in "".join(lines)


def test_words_with_their_spaces_inside_are_set_apart():
    texts, tokens, at = [" The", " cat", "'s", " here"], [], 0
    for number, text in enumerate(texts):
        tokens.append(Token(text, number, at, at + len(text), special=False, continues=text == "'s"))
        at += len(text)
    lines = drawn(picture_of(reading_of(tuple(tokens), torch.full((1, 1, 4, 4), 0.25)), token=0)).splitlines()
    assert "  The cat's here" in lines


def test_of_a_long_text_the_lines_that_matter_are_shown():
    tokens = tokens_of(*(f"word{i}" for i in range(200)))
    weights = torch.full((200, 200), 0.1 / 200)
    weights[:, 190] += 0.9
    lines = drawn(picture_of(reading_of(tokens, weights[None, None]), token=3), 80).splitlines()
    start = lines.index('What "word3" looks at')
    assert lines[start + 1 : start + 7] == [
        "  word0 word1 word2 word3 word4 word5 word6 word7 word8 word9 word10 word11",
        "                    ^^^^^",
        "  … 18 lines …",
        "  ███████",
        "  word190 word191 word192 word193 word194 word195 word196 word197 word198",
        "  … 1 line …",
    ]


def test_color_repeats_what_the_signs_say():
    """Without any style the lines are the same text, so nothing is lost where color is off."""
    lines = draw(picture_of(cat_reading()))
    assert any(span.style for line in lines for span in line.spans)
    assert "\x1b" not in "\n".join(line.plain for line in lines)


STRANGE = {  # token: as it is printed in UTF-8, and in ASCII
    "[bold]x": ("[bold]x", "[bold]x"),
    "</script>": ("</script>", "</script>"),
    "日本": ("日本", r"\u65e5\u672c"),
    "👩\u200d👧": ("👩\u200d👧", r"\U0001f469\~"),
    "e\u0301": ("e\u0301", r"e\u0301"),
    "\u0301": ("◌\u0301", r"\u0301"),
    "\u202egnp": (r"\u202egnp", r"\u202egnp"),
    "1\u00a0km": (r"1\xa0km", r"1\xa0km"),
    "a\nb": ("a⏎b", r"a\nb"),
    "\t": ("⇥", r"\t"),
    " ": ("␠", r"\x20"),
    " it": ("it", "it"),
    "": ("''", "''"),
}


@pytest.mark.parametrize(("glyphs", "encoding", "at"), [(UNICODE, "utf-8", 0), (ASCII, "ascii", 1)])
def test_strange_tokens_are_shown_as_they_are_or_escaped(glyphs, encoding, at):
    tokens = tuple(Token(text, i, i, i + 1, special=False, continues=False) for i, text in enumerate(STRANGE))
    n = len(tokens)
    picture = picture_of(reading_of(tokens, torch.full((1, 1, n, n), 1 / n)))
    lines = [line.plain for line in draw(picture, 120, glyphs, encoding)]
    start = lines.index("What each token looks at") + 3
    assert [line.split()[1] for line in lines[start : start + n]] == [shown[at] for shown in STRANGE.values()]


@given(
    texts=st.lists(st.text(max_size=12), min_size=1, max_size=30),
    joins=st.integers(0, 2**30),
    width=st.integers(40, 200),
    encoding=st.sampled_from(["utf-8", "ascii", "latin-1", "cp437"]),
    token=st.integers(0, 29) | st.none(),
)
@example(texts=["", "000000000000"], joins=0, width=40, encoding="ascii", token=None)
@example(texts=["x" * 500], joins=0, width=40, encoding="utf-8", token=None)
@example(texts=list(STRANGE), joins=2**30 - 1, width=40, encoding="utf-8", token=None)
def test_no_line_is_wider_than_asked_whatever_the_tokens(texts, joins, width, encoding, token):
    tokens = tuple(
        Token(text, i, i, i + 1, special=not text, continues=bool(i and joins >> i & 1))
        for i, text in enumerate(texts)
    )
    n = len(tokens)
    weights = torch.rand(2, 3, n, n, generator=torch.Generator().manual_seed(n)).softmax(-1)
    picture = picture_of(reading_of(tokens, weights), token=None if token is None or token >= n else token)
    glyphs = glyphs_for(encoding)
    for line in draw(picture, width, glyphs, encoding):
        assert line.cell_len <= width, line.plain
        line.plain.encode(encoding)
        assert line.plain.isprintable() or "\u200d" in line.plain


@pytest.mark.parametrize(
    "given_", [{"layer": 0}, {"head": 2}, {"layer": 0, "head": 2}, {"layer": 1, "head": 1}]
)
def test_the_reason_names_what_was_left_to_choose(given_):
    text = " ".join(drawn(picture_of(cat_reading(), **given_)).split())
    reason = {
        (
            0,
            None,
        ): "Chosen from the 3 heads of layer 0 for the most telling link between words that are not neighbors:",
        (
            None,
            2,
        ): "Chosen from head 2 of each of the 2 layers for the most telling link between words that are not neighbors:",
        (0, 2): "Here the most telling link between words that are not neighbors is",
        (1, 1): 'Here the most telling link between words that are not neighbors is "it" → "cat".',
    }[given_.get("layer"), given_.get("head")]
    assert reason in text
