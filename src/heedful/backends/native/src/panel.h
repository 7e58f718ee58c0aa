// The matrix products of a panel: rows of queries against the keys they see.
#pragma once

#include "plan.h"

namespace heedful {

// What each tile_rows rows of a block see between them.
struct Groups {
  Range seen[most_rows / tile_rows];
};

Groups groups_of(const heedful_call &call, const Block &block);

// The rows of a block as floats or as pairs: where they lie if they are that already, else in `scratch`, of
// block.rows() x width.
Strided rows_of(const heedful_array &array, const Block &block, int64_t width, float *scratch, bool pairs);

// panel = rows @ columns, tile by tile, where a tile of keys can be seen. `columns` is packed, depth_of(width) x keys.
void multiply_columns(const heedful_call &call, const Block &block, const Groups &groups, Strided rows, int64_t width,
                      const float *columns, float *panel, bool pairs);

// sums = panel @ rows, by chunks of keys. `rows` is packed, keys x width; a row of `sums` has round_up(width, lanes).
void multiply_rows(const heedful_call &call, const Block &block, const Groups &groups, const float *panel,
                   const float *rows, int64_t width, float *sums);

}  // namespace heedful
