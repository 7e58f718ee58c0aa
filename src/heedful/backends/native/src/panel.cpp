#include "panel.h"

namespace heedful {

Groups groups_of(const heedful_call &call, const Block &block) {
  Groups groups;
  for (int64_t row = 0; row < block.rows(); row += tile_rows) {
    const int64_t begin = block.begin + row, end = std::min(begin + tile_rows, block.end);
    groups.seen[row / tile_rows] = visible_range(call, block.batch, begin, end);
  }
  return groups;
}

Strided rows_of(const heedful_array &array, const Block &block, int64_t width, float *scratch, bool pairs) {
  if (array.dtype == HEEDFUL_FLOAT32)
    return {static_cast<const float *>(array.data) + offset(array, block.batch, block.head, block.begin),
            array.stride[2], array.stride[3]};
  if (pairs && lies_in_pairs(array, width))
    return {pairs_at(array, block.batch, block.head, block.begin), array.stride[2] / 2, 1};
  const int64_t depth = depth_of(width, pairs);
  for (int64_t row = 0; row < block.rows(); row++)
    if (pairs)
      read_pairs(array, block.batch, block.head, block.begin + row, width, scratch + row * depth, Spoiled::stay);
    else
      read_row(array, block.batch, block.head, block.begin + row, 0, width, scratch + row * depth);
  return {scratch, depth, 1};
}

void multiply_columns(const heedful_call &call, const Block &block, const Groups &groups, Strided rows, int64_t width,
                      const float *columns, float *panel, bool pairs) {
  const int64_t depth = depth_of(width, pairs);
  for (int64_t key = block.keys.first; key < block.keys.last; key += tile_columns) {
    const int vectors = vectors_at(key, call.keys);
    for (int64_t row = 0; row < block.rows(); row += tile_rows) {
      const Range seen = groups.seen[row / tile_rows];
      if (key >= seen.last || key + tile_columns <= seen.first) continue;
      const int count = int(std::min<int64_t>(tile_rows, block.rows() - row));
      const TileProduct product = pairs ? tile_for<false, OfPairs>(count, vectors) : tile_for<false>(count, vectors);
      product({rows.data + row * rows.row, rows.row, rows.step}, columns + depth * key, depth,
              panel + row * block.stride() + (key - block.keys.first), block.stride());
    }
  }
}

void multiply_rows(const heedful_call &call, const Block &block, const Groups &groups, const float *panel,
                   const float *rows, int64_t width, float *sums) {
  const int64_t stride = round_up(width, lanes);
  for (int64_t row = 0; row < block.rows(); row += tile_rows)
    if (groups.seen[row / tile_rows].empty())
      std::fill(sums + row * stride, sums + std::min(row + tile_rows, block.rows()) * stride, 0.0f);
  for (int64_t chunk = block.keys.first; chunk < block.keys.last; chunk += key_chunk) {
    for (int64_t column = 0; column < width; column += tile_columns) {
      const int vectors = vectors_at(column, width);
      const float *tile = rows + call.keys * column;
      for (int64_t row = 0; row < block.rows(); row += tile_rows) {
        const Range seen = groups.seen[row / tile_rows];
        const int64_t first = std::max(chunk, seen.first), last = std::min(chunk + key_chunk, seen.last);
        if (first >= last) continue;
        const int count = int(std::min<int64_t>(tile_rows, block.rows() - row));
        const float *weights = panel + row * block.stride() + (first - block.keys.first);
        const TileProduct product = first == seen.first ? tile_for<false>(count, vectors) : tile_for<true>(count, vectors);
        product({weights, block.stride(), 1}, tile + first * vectors * lanes, last - first, sums + row * stride + column,
                stride);
      }
    }
  }
}

}  // namespace heedful
