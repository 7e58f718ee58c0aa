"""Sinusoidal and learned positions."""

import copy
import math
import pickle

import pytest
import torch

from heedful.positions import Learned, Sinusoidal, Sinusoidal2d, positional_encoding, positional_encoding_2d


def definition(position: int, column: int, embed_dim: int, base: float = 10000.0) -> float:
    """One number of the encoding, by the post's formula."""
    angle = position / base ** (2 * (column // 2) / embed_dim)
    return math.cos(angle) if column % 2 else math.sin(angle)


def by_definition(positions: list[int], embed_dim: int, base: float = 10000.0) -> torch.Tensor:
    rows = [
        [definition(position, column, embed_dim, base) for column in range(embed_dim)]
        for position in positions
    ]
    return torch.tensor(rows, dtype=torch.float64)


def the_posts(seq_len: int, embed_dim: int) -> torch.Tensor:
    """What the post's code computes."""
    table = torch.zeros(seq_len, embed_dim)
    positions = torch.arange(0, seq_len, dtype=torch.float32).unsqueeze(1)
    rates = torch.exp(torch.arange(0, embed_dim, 2, dtype=torch.float32) * -(math.log(10000.0) / embed_dim))
    table[:, 0::2] = torch.sin(positions * rates)
    table[:, 1::2] = torch.cos(positions * (rates[:-1] if embed_dim % 2 else rates))
    return table


@pytest.mark.parametrize("embed_dim", [1, 2, 3, 4, 5, 29, 512])
def test_encoding_is_the_posts_for_odd_and_even_sizes(embed_dim):
    """BERT-pytorch#78: an odd size crashed where there was one more sine than cosine; the last cosine is dropped."""
    encoding = positional_encoding(100, embed_dim)
    assert encoding.dtype == torch.float32
    torch.testing.assert_close(encoding, the_posts(100, embed_dim), rtol=0, atol=2e-5)
    torch.testing.assert_close(
        encoding, by_definition(list(range(100)), embed_dim).float(), rtol=0, atol=6e-8
    )


def test_second_position_is_not_what_the_post_prints():
    """The post prints 0.8415 0.5403 0.0200 0.9998 for embed_dim=512; its own code gives these numbers."""
    row = positional_encoding(2, 512)[1, :4]
    torch.testing.assert_close(row, torch.tensor([0.8415, 0.5403, 0.8219, 0.5697]), rtol=0, atol=5e-5)


def test_columns_of_a_pair_share_a_frequency():
    """DeepCTR#379: with one exponent per column, sine and cosine of a pair had different frequencies."""
    encoding = positional_encoding(50, 4, dtype=torch.float64)
    ones = encoding[:, 0::2] ** 2 + encoding[:, 1::2] ** 2
    torch.testing.assert_close(ones, torch.ones(50, 2, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_far_positions_are_exact_in_every_dtype(dtype):
    """gpt-neox#1003: angles in half precision were off by whole turns, and bfloat16 could not tell 257 from 256."""
    encoding = positional_encoding(3, 32, offset=100_000, dtype=dtype)
    expected = by_definition([100_000, 100_001, 100_002], 32)
    assert encoding.dtype == dtype
    torch.testing.assert_close(encoding, expected.to(dtype), rtol=0, atol=torch.finfo(dtype).eps)
    near = positional_encoding(2, 32, offset=256, dtype=dtype)
    assert (near[0] != near[1]).any()


def test_offset_and_base():
    whole = positional_encoding(9, 7, base=50.0)
    torch.testing.assert_close(positional_encoding(4, 7, offset=5, base=50.0), whole[5:], rtol=0, atol=0)
    torch.testing.assert_close(whole.double(), by_definition(list(range(9)), 7, base=50.0), rtol=0, atol=6e-8)


def test_encoding_of_nothing_is_empty():
    assert positional_encoding(0, 6).shape == (0, 6)


def test_encoding_on_meta_has_a_shape():
    encoding = positional_encoding(5, 6, device="meta", dtype=torch.float16)
    assert (encoding.shape, encoding.dtype, encoding.device.type) == ((5, 6), torch.float16, "meta")


def test_module_adds_rows_not_columns_and_the_same_for_every_item():
    """DiffPoseTalk#20: a table indexed by the wrong axis added one row, or the batch index, to all positions."""
    x = torch.randn(2, 3, 5)
    expected = x + the_posts(3, 5)
    torch.testing.assert_close(Sinusoidal()(x), expected)


@pytest.mark.parametrize("start", [7, torch.tensor([7, 2]), torch.tensor([[7, 8, 9], [0, 0, 4]])])
def test_module_starts_where_it_is_told(start):
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    positions = {
        0: [[7, 8, 9], [7, 8, 9]],
        1: [[7, 8, 9], [2, 3, 4]],
        2: [[7, 8, 9], [0, 0, 4]],
    }[start.ndim if isinstance(start, torch.Tensor) else 0]
    expected = x + torch.stack([by_definition(row, 6) for row in positions])
    torch.testing.assert_close(Sinusoidal().embed(x, start), expected)


def test_left_padded_tokens_count_from_their_first_real_token():
    """nnsight PR#673: with left padding, real tokens must stand at 0, 1, ..., as they would alone."""
    x = torch.randn(2, 4, 6)
    padded = Sinusoidal().embed(x, torch.tensor([0, -2]))
    alone = Sinusoidal().embed(x[1:, 2:])
    torch.testing.assert_close(padded[1:, 2:], alone, rtol=0, atol=0)


def test_half_module_keeps_exact_angles():
    x = torch.zeros(1, 2000, 32, dtype=torch.float16)
    added = Sinusoidal().half()(x)
    assert added.dtype == torch.float16
    torch.testing.assert_close(added[0, 1857].double(), by_definition([1857], 32)[0], rtol=0, atol=5e-4)


def test_grid_is_rows_then_columns():
    encoding = positional_encoding_2d(3, 5, 12, dtype=torch.float64)
    assert encoding.shape == (3, 5, 12)
    torch.testing.assert_close(
        encoding[2, 4], torch.cat([by_definition([2], 6)[0], by_definition([4], 6)[0]])
    )


def test_grid_module_reads_row_by_row():
    x = torch.randn(2, 15, 12)
    torch.testing.assert_close(Sinusoidal2d(5)(x), x + positional_encoding_2d(3, 5, 12).flatten(0, 1))
    torch.testing.assert_close(Sinusoidal2d(5)(x[:, 7:], 7), Sinusoidal2d(5)(x)[:, 7:], rtol=0, atol=0)


def test_learned_adds_its_rows():
    table = Learned(9, 4)
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(table(x), x + table.weight[:3])
    torch.testing.assert_close(table.embed(x, 6), x + table.weight[6:])
    ids = torch.tensor([[8, 0, 0], [1, 2, 3]])
    torch.testing.assert_close(table.embed(x, ids), x + table.weight[ids])
    assert table.tensors == (table.weight,)
    table(x).sum().backward()
    assert table.weight.grad.sum(1).tolist() == [8.0] * 3 + [0.0] * 6


@pytest.mark.parametrize("module", [Sinusoidal(base=50.0), Sinusoidal2d(3, base=50.0), Learned(4, 6)])
def test_modules_copy_and_pickle(module):
    x = torch.randn(2, 4, 6)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(twin(x), module(x), rtol=0, atol=0)


def test_modules_say_what_they_are():
    assert repr(Sinusoidal()) == "Sinusoidal(base=10000.0)"
    assert repr(Sinusoidal2d(4)) == "Sinusoidal2d(width=4, base=10000.0)"
    assert repr(Learned(5, 6)) == "Learned(max_length=5, embed_dim=6)"


MESSAGES = [
    (lambda: positional_encoding(-1, 4), ValueError, "seq_len must not be negative, got -1."),
    (lambda: positional_encoding(3, 0), ValueError, "embed_dim must be an integer of at least 1, got 0."),
    (
        lambda: positional_encoding(3, 4, base=0.0),
        ValueError,
        "base must be a finite number above zero, got 0.0.",
    ),
    (lambda: Sinusoidal(base=-1.0), ValueError, "base must be a finite number above zero, got -1.0."),
    (
        lambda: positional_encoding_2d(3, -5, 4),
        ValueError,
        "height and width must not be negative, got 3 and -5.",
    ),
    (
        lambda: positional_encoding_2d(3, 5, 7),
        ValueError,
        "embed_dim must be even, half for the row and half for the column; got 7.",
    ),
    (lambda: Sinusoidal2d(0), ValueError, "width must be an integer of at least 1, got 0."),
    (
        lambda: Learned(0, 4),
        ValueError,
        "max_length must be an integer of at least 1, got 0.",
    ),
    (
        lambda: Learned(4, 6)(torch.zeros(2, 5, 6)),
        IndexError,
        "positions must be from 0 to 3, the rows of a table with max_length=4; got 0 to 4. "
        "Make the table longer, or shorten the input.",
    ),
    (
        lambda: Learned(4, 6)(torch.zeros(2, 3, 6), torch.tensor([0, -2])),
        IndexError,
        "positions must be from 0 to 3, the rows of a table with max_length=4; got -2 to 2. "
        "Make the table longer, or shorten the input.",
    ),
    (
        lambda: Learned(4, 6)(torch.zeros(2, 3, 5)),
        ValueError,
        "x must have vectors of size 6, the table's embed_dim; got the shape (2, 3, 5).",
    ),
    (
        lambda: Sinusoidal()(torch.zeros(2, 3, 5), torch.zeros(2, 4, dtype=torch.int64)),
        ValueError,
        "start must be an int, one integer per batch item (batch,), or all positions (batch, 3), got the shape (2, 4).",
    ),
    (
        lambda: Sinusoidal()(torch.zeros(2, 3, 5), torch.tensor([0.0, 1.0])),
        TypeError,
        "start must hold integers, got torch.float32. Convert it with start.long().",
    ),
    (
        lambda: Sinusoidal(64),
        TypeError,
        "Sinusoidal takes its arguments by name, got 64 without one. Write Sinusoidal() or Sinusoidal(base=...); "
        "the size of the vectors is read from the tokens.",
    ),
    (
        lambda: Sinusoidal()(torch.zeros(2, 3, 5), "0"),
        TypeError,
        "start must be an int or a tensor of integers, got str.",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), MESSAGES)
def test_bad_input_says_what_to_do(call, error, message):
    """pytorch-seq2seq#89: an index beyond the table, or a negative one, is an error and is never clamped."""
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message
