#include "packing.h"

#include <algorithm>

#include "reader.h"

namespace heedful {

namespace {

template <Floats (*convert)(Words)>
void read_halves(const uint16_t *from, int64_t step, int64_t n, float *to) {
  int64_t i = 0;
  if (step == 1)
    for (; i + lanes <= n; i += lanes) store(to + i, convert(load_halves(from + i)));
  for (; i < n; i++) {
    uint16_t x[lanes] = {from[i * step]};
    to[i] = convert(load_halves(x))[0];
  }
}

template <Words (*convert)(Floats)>
void write_halves(uint16_t *to, int64_t step, int64_t n, const float *from) {
  int64_t i = 0;
  if (step == 1)
    for (; i + lanes <= n; i += lanes) store_halves(to + i, convert(load(from + i)));
  for (; i < n; i++) to[i * step] = uint16_t(convert(all(from[i]))[0]);
}

// Numbers that are not finite become 0.
inline Floats finite(Floats x) { return from_bits(bits(x) & (x - x == Floats{})); }

// lanes x lanes numbers: rows become columns.
void transpose(const float *const from[lanes], int64_t begin, float *to, int64_t to_row, bool all_stay) {
  Floats x[lanes], y[lanes];
  for (int i = 0; i < lanes; i++) x[i] = load(from[i] + begin);
  for (int width = 1; width < lanes; width *= 2) {
    for (int i = 0; i < lanes / 2; i++) {
      y[2 * i] = interleave(x[i], x[i + lanes / 2], false);
      y[2 * i + 1] = interleave(x[i], x[i + lanes / 2], true);
    }
    std::copy(y, y + lanes, x);
  }
  for (int i = 0; i < lanes; i++) store(to + i * to_row, all_stay ? x[i] : finite(x[i]));
}

// One row, tile by tile. Returns the lanes in which all numbers are finite.
template <class Source>
Ints pack_row(const typename Source::Element *x, int64_t width, int64_t row, PackedRows to, Spoiled spoiled) {
  Ints good = ~Ints{};
  for (int64_t column = 0; column < width; column += tile_columns) {
    const int vectors = vectors_at(column, width);
    float *packed = to.data + to.depth * column + (row - to.first) * vectors * lanes;
    for (int v = 0; v < vectors; v++) {
      const int64_t at = column + v * lanes;
      const Floats y = Source::read_some(x + at, width - at);
      good &= y - y == Floats{};
      store(packed + v * lanes, spoiled == Spoiled::stay ? y : finite(y));
    }
  }
  return good;
}

}  // namespace

void read_row(const heedful_array &from, int64_t batch, int64_t head, int64_t row, int64_t begin, int64_t end,
              float *to) {
  const int64_t step = from.stride[3], n = end - begin;
  const int64_t at = offset(from, batch, head, row) + begin * step;
  if (from.dtype == HEEDFUL_BFLOAT16)
    return read_halves<from_bfloat16>(static_cast<const uint16_t *>(from.data) + at, step, n, to);
  if (from.dtype == HEEDFUL_FLOAT16)
    return read_halves<from_float16>(static_cast<const uint16_t *>(from.data) + at, step, n, to);
  const float *x = static_cast<const float *>(from.data) + at;
  if (step == 1)
    std::copy(x, x + n, to);
  else
    for (int64_t i = 0; i < n; i++) to[i] = x[i * step];
}

void write_row(const heedful_array &to, int64_t batch, int64_t head, int64_t row, int64_t n, const float *from) {
  const int64_t step = to.stride[3], at = offset(to, batch, head, row);
  if (to.dtype == HEEDFUL_BFLOAT16)
    return write_halves<to_bfloat16>(static_cast<uint16_t *>(to.data) + at, step, n, from);
  if (to.dtype == HEEDFUL_FLOAT16)
    return write_halves<to_float16>(static_cast<uint16_t *>(to.data) + at, step, n, from);
  float *x = static_cast<float *>(to.data) + at;
  for (int64_t i = 0; i < n; i++) x[i * step] = from[i];
}

const float *row_of(const heedful_array &from, int64_t batch, int64_t head, int64_t row, int64_t begin, int64_t end,
                    float *scratch) {
  if (from.dtype == HEEDFUL_FLOAT32 && from.stride[3] == 1)
    return static_cast<const float *>(from.data) + offset(from, batch, head, row) + begin;
  read_row(from, batch, head, row, begin, end, scratch);
  return scratch;
}

bool pack_rows(const Matrix &from, int64_t begin, int64_t end, PackedRows to, float *scratch, Spoiled spoiled) {
  Ints good = ~Ints{};
  with_reader(from.array, [&](auto reader) {
    typedef decltype(reader) Source;
    for (int64_t row = begin; row < end; row++) {
      if (from.array.stride[3] == 1) {
        const auto *x = static_cast<const typename Source::Element *>(from.array.data);
        good &= pack_row<Source>(x + offset(from.array, from.batch, from.head, row), from.width, row, to, spoiled);
      } else {
        read_row(from.array, from.batch, from.head, row, 0, from.width, scratch);
        good &= pack_row<FloatReader>(scratch, from.width, row, to, spoiled);
      }
    }
  });
  return spoiled == Spoiled::stay || !any(~good);
}

void read_pairs(const heedful_array &from, int64_t batch, int64_t head, int64_t row, int64_t width, float *to,
                Spoiled spoiled) {
  const uint16_t *x = static_cast<const uint16_t *>(from.data) + offset(from, batch, head, row);
  const int64_t step = from.stride[3];
  const auto part = [&](int64_t k) {
    const uint16_t exponent = 0x7f80, each = k < width ? x[k * step] : uint16_t(0);
    return spoiled == Spoiled::become_zero && (each & exponent) == exponent ? uint16_t(0) : each;
  };
  for (int64_t k = 0; k < width; k += 2) {
    const uint16_t pair[2] = {part(k), part(k + 1)};
    std::memcpy(to + k / 2, pair, sizeof(pair));
  }
}

void pack_columns(const Matrix &from, int64_t begin, int64_t end, float *to, float *scratch, Spoiled spoiled,
                  bool pairs) {
  const int64_t depth = depth_of(from.width, pairs);
  const float *x[lanes];
  const bool as_they_lie = pairs && spoiled == Spoiled::stay && lies_in_pairs(from.array, from.width);
  const auto read = [&](int64_t row, float *space) -> const float * {
    if (!pairs) return row_of(from.array, from.batch, from.head, row, 0, from.width, space);
    if (as_they_lie) return pairs_at(from.array, from.batch, from.head, row);
    read_pairs(from.array, from.batch, from.head, row, from.width, space, spoiled);
    return space;
  };
  const bool all_stay = pairs || spoiled == Spoiled::stay;  // read_pairs sees to it itself
  for (int64_t column = begin; column < end; column += lanes) {
    const int64_t tile = column / tile_columns * tile_columns;
    const int64_t to_row = vectors_at(tile, from.rows) * lanes;
    float *packed = to + depth * tile + (column - tile);
    for (int i = 0; i < lanes; i++)
      x[i] = read(std::min(column + i, from.rows - 1), scratch + i * round_up(from.width, lanes));
    int64_t k = 0;
    for (; k + lanes <= depth; k += lanes) transpose(x, k, packed + k * to_row, to_row, all_stay);
    for (; k < depth; k++)
      for (int i = 0; i < lanes; i++) {
        const bool stays = all_stay || x[i][k] - x[i][k] == 0;
        const float zero = 0;
        std::memcpy(packed + k * to_row + i, stays ? x[i] + k : &zero, sizeof(float));
      }
  }
}

}  // namespace heedful
