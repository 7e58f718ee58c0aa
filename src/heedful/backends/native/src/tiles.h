// Small matrix products held in registers: the only place where dot products are computed.
//
//     c[row][column] (+)= sum over k of a(row, k) * b(k, column)
//
// `a` is read one number at a time, with any strides, so it may be a matrix or its transpose. `b` is packed: its
// columns are cut into tiles, and a tile holds its columns side by side for every k (see packing.h).
#pragma once

#include <algorithm>

#include "vectors.h"

namespace heedful {

// What is multiplied: floats, or pairs of bfloat16 numbers, each pair in the place of a float.
struct OfFloats {
  static Floats repeat(const float *x) { return all(*x); }
  static Floats add(Floats sum, Floats x, Floats y) { return sum + x * y; }
};
#if defined(__AVX512BF16__)
constexpr bool knows_pairs = true;
struct OfPairs {
  static Floats repeat(const float *x) {
    int32_t pair;
    std::memcpy(&pair, x, sizeof(pair));
    return from_bits(pair - Ints{});
  }
  static Floats add(Floats sum, Floats x, Floats y) {
    return reinterpret_cast<Floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(x),
                                                     reinterpret_cast<__m512bh>(y)));
  }
};
#else
constexpr bool knows_pairs = false;
typedef OfFloats OfPairs;
#endif

struct Strided {
  const float *data;
  ptrdiff_t row, step;  // from one row to the next, from one k to the next
};

template <int rows, int vectors, bool add, class Product>
void tile_product(Strided a, const float *b, ptrdiff_t depth, float *c, ptrdiff_t c_row) {
  Floats sums[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) sums[r][v] = Floats{};

  for (ptrdiff_t k = 0; k < depth; k++) {
    Floats column[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) column[v] = load(b + v * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      const Floats x = Product::repeat(a.data + r * a.row);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++) sums[r][v] = Product::add(sums[r][v], x, column[v]);
    }
    a.data += a.step;
    b += vectors * lanes;
  }

#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
      float *to = c + r * c_row + v * lanes;
      store(to, add ? load(to) + sums[r][v] : sums[r][v]);
    }
}

typedef void (*TileProduct)(Strided a, const float *b, ptrdiff_t depth, float *c, ptrdiff_t c_row);

template <bool add, class Product, int vectors>
TileProduct tile_with(int rows) {
  static const TileProduct by_rows[] = {
      tile_product<1, vectors, add, Product>, tile_product<2, vectors, add, Product>,
      tile_product<3, vectors, add, Product>, tile_product<4, vectors, add, Product>,
      tile_product<5, vectors, add, Product>, tile_product<6, vectors, add, Product>,
  };
  static_assert(sizeof(by_rows) / sizeof(by_rows[0]) == tile_rows, "one product for each number of rows");
  return by_rows[rows - 1];
}

template <bool add, class Product = OfFloats>
TileProduct tile_for(int rows, int vectors) {
  switch (vectors) {
    case 1: return tile_with<add, Product, 1>(rows);
    case 2: return tile_with<add, Product, 2>(rows);
#if defined(__AVX512F__) || defined(__aarch64__)
    case 3: return tile_with<add, Product, 3>(rows);
    case 4: return tile_with<add, Product, 4>(rows);
#endif
  }
  __builtin_unreachable();
}

// Vectors in the tile that begins at `column` of a matrix with `columns` columns: the last may be narrower.
inline int vectors_at(int64_t column, int64_t columns) {
  return int(std::min<int64_t>(tile_vectors, (columns - column + lanes - 1) / lanes));
}

}  // namespace heedful
