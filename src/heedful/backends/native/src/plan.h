// How a call is cut into tasks for threads, and a task into blocks of rows whose panel stays in the cache.
#pragma once

#include <algorithm>

#include "packing.h"

namespace heedful {

// Values are summed in chunks of this many keys, on a grid that does not depend on the block, so that a row's result
// depends on nothing but the row.
constexpr int64_t key_chunk = 128;
static_assert(key_chunk % tile_columns == 0, "a chunk is made of whole tiles");

struct Range {
  int64_t first, last;  // one past the end
  bool empty() const { return last <= first; }
};

inline Range visible_range(const heedful_call &call, int64_t batch, int64_t query) {
  if (!call.first) return {0, call.keys};
  const int64_t at = batch * call.range_stride + query;
  return {std::max<int64_t>(call.first[at], 0), std::min<int64_t>(call.last[at], call.keys)};
}

// The same within the keys of a panel, which holds them all: nothing begins where the panel does.
inline Range visible_range(const heedful_call &call, int64_t batch, int64_t query, Range panel) {
  const Range seen = visible_range(call, batch, query);
  return seen.empty() ? Range{panel.first, panel.first} : seen;
}

// What some rows see between them.
inline Range visible_range(const heedful_call &call, int64_t batch, int64_t begin, int64_t end) {
  Range all = {call.keys, 0};
  for (int64_t query = begin; query < end; query++) {
    const Range one = visible_range(call, batch, query);
    if (one.empty()) continue;
    all = {std::min(all.first, one.first), std::max(all.last, one.last)};
  }
  return all.empty() ? Range{0, 0} : all;
}

// Most rows of a block.
constexpr int64_t most_rows = 16 * tile_rows;

// From one row of a panel to the next: room for whole tiles, and no power of two.
inline int64_t panel_stride(int64_t width) { return round_up(width, tile_columns) + lanes; }

// A panel of scores: rows of one head against the keys from `keys.first`, the start of a chunk.
struct Block {
  int64_t batch, head;
  int64_t begin, end;  // queries
  Range keys;
  int64_t rows() const { return end - begin; }
  int64_t stride() const { return panel_stride(keys.last - keys.first); }
};

// Threads that are worth waking: each should have some hundred thousand products to add.
inline int64_t threads_for(const heedful_call &call) {
  const int64_t rows = call.batch * call.heads * call.queries, width = call.width + call.value_width;
  const int64_t products = rows * std::max<int64_t>(call.keys, 1) * std::max<int64_t>(width, 1);
  return std::clamp<int64_t>(products >> 19, 1, std::max<int64_t>(call.threads, 1));
}

// The keys of a head in parts that are packed by different threads.
struct KeyParts {
  int64_t keys, size, count;
  explicit KeyParts(int64_t keys)
      : keys(keys),
        size(round_up(std::max<int64_t>(256, (keys + 15) / 16), key_chunk)),
        count((keys + size - 1) / size) {}
  Range part(int64_t number) const { return {number * size, std::min((number + 1) * size, keys)}; }
};

int64_t level2_cache();

// How many panels a block has, and the least rows it may be cut to.
struct PanelLimits {
  int64_t panels, least_rows;
};

// Rows that a panel should have at most, so that a block takes no more than part of the level-2 cache.
inline int64_t rows_for(int64_t width, PanelLimits limits) {
  const int64_t budget = level2_cache() * 6 / 10 / (int64_t(sizeof(float)) * limits.panels);
  const int64_t rows = budget / std::max<int64_t>(width, 1) / tile_rows * tile_rows;
  return std::clamp<int64_t>(rows, limits.least_rows, most_rows);
}

inline Block next_block(const heedful_call &call, int64_t batch, int64_t head, int64_t begin, int64_t end,
                        PanelLimits limits) {
  int64_t rows = std::min<int64_t>(most_rows, end - begin);
  Range keys = visible_range(call, batch, begin, begin + rows);
  const int64_t most = rows_for(keys.last - keys.first, limits);
  if (rows > most) {
    const int64_t left = end - begin, blocks = (left + most - 1) / most;
    rows = std::min(most, round_up((left + blocks - 1) / blocks, tile_rows));
    keys = visible_range(call, batch, begin, begin + rows);
  }
  keys.first = keys.first / key_chunk * key_chunk;
  return {batch, head, begin, begin + rows, keys};
}

// The largest panel that a block can have, in floats.
inline int64_t panel_size(const heedful_call &call, PanelLimits limits) {
  const int64_t width = panel_stride(call.keys) + key_chunk;
  const int64_t rows = round_up(std::min<int64_t>(call.queries, most_rows), tile_rows);
  const int64_t whole_cache = level2_cache() / int64_t(sizeof(float));
  return std::min(rows * width, std::max(whole_cache, limits.least_rows * width));
}

}  // namespace heedful
