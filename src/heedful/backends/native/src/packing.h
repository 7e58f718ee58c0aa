// Inputs laid out for tiles.h: float32, contiguous, padded to whole vectors.
#pragma once

#include "call.h"
#include "tiles.h"

namespace heedful {

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Where a row begins.
inline int64_t offset(const heedful_array &array, int64_t batch, int64_t head, int64_t row) {
  return batch * array.stride[0] + head * array.stride[1] + row * array.stride[2];
}

// One head of an array: a matrix of rows x width.
struct Matrix {
  const heedful_array &array;
  int64_t batch, head, rows, width;
};

// One row as floats, whatever its dtype and strides: columns [begin, end).
void read_row(const heedful_array &from, int64_t batch, int64_t head, int64_t row, int64_t begin, int64_t end, float *to);

// The same, without a copy where the array already is float32 with its columns side by side.
const float *row_of(const heedful_array &from, int64_t batch, int64_t head, int64_t row, int64_t begin, int64_t end,
                    float *scratch);

// Whether the rows of two arrays are multiplied as pairs of bfloat16 numbers, which takes half the steps; sums are
// float32 either way.
inline bool as_pairs(const heedful_array &a, const heedful_array &b) {
  return knows_pairs && a.dtype == HEEDFUL_BFLOAT16 && b.dtype == HEEDFUL_BFLOAT16;
}
inline int64_t depth_of(int64_t width, bool pairs) { return pairs ? (width + 1) / 2 : width; }

void write_row(const heedful_array &to, int64_t batch, int64_t head, int64_t row, int64_t n, const float *from);

// A packed matrix of depth x columns: tile after tile of tile_columns columns (the last may be narrower), each with its
// columns side by side for every k of the depth.
inline int64_t packed_size(int64_t depth, int64_t columns) { return depth * round_up(columns, lanes); }

// What becomes of numbers that are not finite. A pair that nobody sees must not spoil a sum, and 0 * NaN would.
enum class Spoiled { stay, become_zero };

// Whether the rows of bfloat16 numbers are pairs as they lie.
inline bool lies_in_pairs(const heedful_array &array, int64_t width) {
  const auto strides = array.stride[0] | array.stride[1] | array.stride[2] | width;
  return array.stride[3] == 1 && strides % 2 == 0 && reinterpret_cast<uintptr_t>(array.data) % sizeof(float) == 0;
}
inline const float *pairs_at(const heedful_array &array, int64_t batch, int64_t head, int64_t row) {
  return static_cast<const float *>(array.data) + offset(array, batch, head, row) / 2;
}

// One row of bfloat16 numbers as pairs; an odd last one is paired with 0.
void read_pairs(const heedful_array &from, int64_t batch, int64_t head, int64_t row, int64_t width, float *to,
                Spoiled spoiled);

// The rows [begin, end) as part of the depth of a packed matrix, in which row `first` comes first. False is returned
// if any number became zero. `scratch` holds one row.
struct PackedRows {
  float *data;
  int64_t depth, first;
};
bool pack_rows(const Matrix &from, int64_t begin, int64_t end, PackedRows to, float *scratch, Spoiled spoiled);

// The rows [begin, end) as columns of a packed matrix that has all rows; `begin` is a multiple of tile_columns. The
// padding repeats the last row. `scratch` holds `lanes` rows. With `pairs` the depth is depth_of(width).
void pack_columns(const Matrix &from, int64_t begin, int64_t end, float *to, float *scratch, Spoiled spoiled,
                  bool pairs);

}  // namespace heedful
