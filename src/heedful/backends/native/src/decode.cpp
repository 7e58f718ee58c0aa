// The forward pass for a few queries per key head, as in decoding: bound by reading keys and values, so they are read
// once, as they lie, for all the queries that share them. The keys are cut into chunks on a fixed grid, so that the
// sums do not depend on the number of threads.
#include "decode.h"

#include <atomic>
#include <type_traits>
#include <vector>

#include "buffer.h"
#include "reader.h"
#include "threads.h"
#include "totals.h"

namespace heedful {

namespace {

constexpr int64_t few_rows = 12, rows_together = 4, keys_together = 16, decode_chunk = 512;

// Fetches the same column of a key or value that comes a while later, of 16 float32 or 32 half rows: as many bytes. All
// caches keep it: the next token reads it again, and finds what fits.
template <class T>
void fetch_ahead(const T *from, int64_t stride) {
  __builtin_prefetch(from + int64_t(64 / sizeof(T)) * stride);
}

// Lane i of the result is the sum of x[i].
Floats sum_each(Floats x[lanes]) {
  for (int count = lanes; count > 1; count /= 2)
    for (int i = 0; i < count / 2; i++) {
      const Floats a = x[i], b = x[i + count / 2];
      x[i] = interleave(a, b, false) + interleave(a, b, true);
    }
  return x[0];
}

// Calls body with min(n, rows_together) as a constant: what is read of a key or value serves that many rows at once.
template <class Body>
void with_rows(int64_t n, Body body) {
  static_assert(rows_together == 4);
  switch (n) {
    case 1: return body(std::integral_constant<int, 1>());
    case 2: return body(std::integral_constant<int, 2>());
    case 3: return body(std::integral_constant<int, 3>());
    default: return body(std::integral_constant<int, 4>());
  }
}

// The dot products of `rows` queries with n keys, at most `lanes`.
template <class Source, int rows>
void score_keys(const heedful_call &call, const float *queries, const typename Source::Element *keys, int64_t n,
                float *scores, int64_t stride) {
  const int64_t query_width = round_up(call.width, lanes), key_stride = call.key.stride[2];
  Floats sums[rows][lanes];
  for (int i = 0; i < lanes; i++) {  // key after key, in the order they lie in memory
    const typename Source::Element *at = keys + std::min<int64_t>(i, n - 1) * key_stride;
    Floats sum[rows] = {};
    int64_t k = 0;
    for (; k + lanes <= call.width; k += lanes) {
      fetch_ahead(at + k, key_stride);
      const Floats key = Source::read(at + k);
      for (int row = 0; row < rows; row++) sum[row] += load(queries + row * query_width + k) * key;
    }
    if (k < call.width) {
      const Floats key = Source::read_some(at + k, call.width - k);
      for (int row = 0; row < rows; row++) sum[row] += load(queries + row * query_width + k) * key;
    }
    for (int row = 0; row < rows; row++) sums[row][i] = sum[row];
  }
  for (int row = 0; row < rows; row++) store_some(scores + row * stride, sum_each(sums[row]), n);
}

template <class Source>
void score_with(const heedful_call &call, int64_t batch, int64_t group, const float *queries, int64_t rows, Range range,
                float *scores, int64_t stride) {
  const int64_t query_width = round_up(call.width, lanes);
  const auto *keys = static_cast<const typename Source::Element *>(call.key.data) + offset(call.key, batch, group, 0);
  for (int64_t key = range.first; key < range.last; key += lanes)
    for (int64_t row = 0; row < rows; row += rows_together)
      with_rows(rows - row, [&](auto together) {
        score_keys<Source, together>(call, queries + row * query_width, keys + key * call.key.stride[2],
                                     range.last - key, scores + row * stride + key - range.first, stride);
      });
}

// Adds n values, times their weights, to the sums of `rows` rows: key after key, in the order they lie in memory.
template <class Source, int rows, int vectors>
void add_columns(const typename Source::Element *values, int64_t value_stride, int64_t width, const float *weights,
                 int64_t weight_stride, int64_t n, float *sums, int64_t sum_stride) {
  Floats sum[rows][vectors];
  for (int row = 0; row < rows; row++)
    for (int v = 0; v < vectors; v++) sum[row][v] = load(sums + row * sum_stride + v * lanes);
  for (int64_t i = 0; i < n; i++, values += value_stride)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
      fetch_ahead(values + v * lanes, value_stride);
      const Floats value = vectors > 1 ? Source::read(values + v * lanes) : Source::read_some(values, width);
      for (int row = 0; row < rows; row++) sum[row][v] += weights[row * weight_stride + i] * value;
    }
  for (int row = 0; row < rows; row++)
    for (int v = 0; v < vectors; v++) store(sums + row * sum_stride + v * lanes, sum[row][v]);
}

// The same for rows of any width, in as many columns at once as there are registers for.
template <class Source, int rows>
void add_values(const typename Source::Element *values, int64_t value_stride, int64_t width, const float *weights,
                int64_t weight_stride, int64_t n, float *sums, int64_t sum_stride) {
  constexpr int most = rows == 1 ? 8 : lanes == 16 ? 4 : 2;
  int64_t column = 0;
  const auto add = [&](auto vectors) {
    add_columns<Source, rows, vectors>(values + column, value_stride, width - column, weights, weight_stride, n,
                                       sums + column, sum_stride);
    column += vectors * lanes;
  };
  while (column + most * lanes <= width) add(std::integral_constant<int, most>());
  while (column < width) add(std::integral_constant<int, 1>());
}

class Decode {
 public:
  explicit Decode(const heedful_call &call);
  void run();

 private:
  Range keys_of(int64_t batch, int64_t chunk) const;
  void read_queries(int64_t key_head);
  void score(int64_t key_head, int64_t chunk);
  void sum_values(int64_t key_head, int64_t chunk);
  void sum_chunks(int64_t key_head, int64_t thread);
  void finish(int64_t query_head, int64_t thread);
  void carry(const Panel &panel, int64_t query_head) const;
  template <class Source>
  void sum_values(int64_t key_head, int64_t chunk);
  void write_output(int64_t key_head, int64_t thread);
  void write_output_row(int64_t row, int64_t thread);
  void sum_carefully(int64_t row, float factor, float *sums) const;

  const heedful_call &call;
  const int64_t threads, per_group, rows, key_heads, query_heads, chunks, query_width, value_width, stride;
  Totals totals;
  Buffer<float> queries, scores, inverse, partial;
  std::vector<TopK> topk;
  std::vector<Buffer<float>> scratch;
  std::vector<std::atomic<int64_t>> next, summed;  // by key head: the chunk of values to sum next; how many were summed
  std::vector<Range> seen;                         // by batch item: what its queries see between them
};

Decode::Decode(const heedful_call &call)
    : call(call),
      threads(threads_for(call)),
      per_group(call.heads / call.kv_heads),
      rows(per_group * call.queries),
      key_heads(call.batch * call.kv_heads),
      query_heads(call.batch * call.heads),
      chunks((call.keys + decode_chunk - 1) / decode_chunk),
      query_width(round_up(call.width, lanes)),
      value_width(round_up(call.value_width, lanes)),
      stride(round_up(call.keys, lanes) + lanes),
      totals(call),
      queries(key_heads * rows * query_width),
      scores(key_heads * rows * stride),
      inverse(key_heads * rows),
      partial(given(call.output) ? key_heads * chunks * rows * value_width : 0),
      next(static_cast<size_t>(key_heads)),
      summed(static_cast<size_t>(key_heads)) {
  for (auto &each : next) each = chunks;  // none, until there are weights
  for (int64_t i = 0; i < threads; i++) {
    topk.emplace_back(call.topk);
    scratch.emplace_back(std::max(call.keys, 3 * value_width));
  }
  totals.reserve(threads);
  for (int64_t batch = 0; batch < call.batch; batch++) seen.push_back(visible_range(call, batch, 0, call.queries));
}

// With enough key heads for all threads, a head is one task: its scores become weights while they are in the cache. A
// thread that finds no other head to begin helps with the values of those under way. With fewer key heads, each step is
// shared out by chunks of keys.
void Decode::run() {
  if (key_heads >= 2 * threads || threads == 1) {
    std::atomic<int64_t> done = 0;
    parallel_for(threads, key_heads, [&](int64_t key_head, int64_t thread) {
      read_queries(key_head);
      for (int64_t chunk = 0; chunk < chunks; chunk++) score(key_head, chunk);
      for (int64_t head = key_head * per_group; head < (key_head + 1) * per_group; head++) finish(head, thread);
      if (!given(call.output)) return;
      if (chunks == 1) {
        sum_values(key_head, 0);
        return write_output(key_head, thread);
      }
      next[size_t(key_head)] = 0;
      sum_chunks(key_head, thread);
      if (++done <= key_heads - threads) return;
      for (int64_t other = 0; other < key_heads; other++) sum_chunks(other, thread);
    });
    return;
  }
  for (int64_t key_head = 0; key_head < key_heads; key_head++) read_queries(key_head);
  parallel_for(threads, key_heads * chunks, [&](int64_t task, int64_t) { score(task / chunks, task % chunks); });
  parallel_for(threads, query_heads, [&](int64_t head, int64_t thread) { finish(head, thread); });
  if (!given(call.output)) return;
  parallel_for(threads, key_heads * chunks, [&](int64_t task, int64_t) { sum_values(task / chunks, task % chunks); });
  for (int64_t key_head = 0; key_head < key_heads; key_head++) write_output(key_head, 0);
}

// Sums chunks of the values of a head until none is left to take; who sums the last writes the output.
void Decode::sum_chunks(int64_t key_head, int64_t thread) {
  for (int64_t chunk; (chunk = next[size_t(key_head)]++) < chunks;) {
    sum_values(key_head, chunk);
    if (++summed[size_t(key_head)] == chunks) write_output(key_head, thread);
  }
}

void Decode::score(int64_t key_head, int64_t chunk) {
  const int64_t batch = key_head / call.kv_heads, first_row = key_head * rows;
  const Range range = keys_of(batch, chunk);
  score_few(call, batch, key_head % call.kv_heads, queries.get() + first_row * query_width, rows, range,
            scores.get() + first_row * stride + range.first, stride);
}

void Decode::sum_values(int64_t key_head, int64_t chunk) {
  with_reader(call.value, [&](auto source) { sum_values<decltype(source)>(key_head, chunk); });
}

Range Decode::keys_of(int64_t batch, int64_t chunk) const {
  const Range all = seen[size_t(batch)];
  return {std::max(all.first, chunk * decode_chunk), std::min(all.last, (chunk + 1) * decode_chunk)};
}

void Decode::read_queries(int64_t key_head) {
  const int64_t batch = key_head / call.kv_heads, head = key_head % call.kv_heads * per_group;
  for (int64_t i = 0; i < per_group; i++)
    read_padded(call.query, batch, head + i, 0, call.queries, call.width,
                queries.get() + (key_head * rows + i * call.queries) * query_width);
}

// Scores become weights; outside of what a row sees, the row holds 0 wherever another row of its key head sees a key.
void Decode::finish(int64_t query_head, int64_t thread) {
  const int64_t batch = query_head / call.heads, first_row = query_head * call.queries;
  const Range between = seen[size_t(batch)];
  for (int64_t query = 0; query < call.queries; query++) {
    float *x = scores.get() + (first_row + query) * stride;
    const Range range = visible_range(call, batch, query, between);
    const RowPlace row = {batch, query_head % call.heads, query, range.first, range.last - range.first};
    inverse[first_row + query] =
        finish_row(call, row, x + range.first, topk[size_t(thread)], scratch[size_t(thread)].get()).inverse;
    std::fill(x + between.first, x + range.first, 0.0f);
    std::fill(x + range.last, x + std::max(between.last, range.last), 0.0f);
  }
  const Panel panel = {scores.get() + first_row * stride + between.first,
                       call.queries,
                       stride,
                       inverse.get() + first_row,
                       batch,
                       query_head % call.heads,
                       0,
                       between};
  if (call.carried_sum) carry(panel, query_head);
  if (!totals.wanted()) return;
  totals.clear(thread);
  totals.add(thread, panel);
  totals.write(query_head, thread, 1);
}

void Decode::carry(const Panel &panel, int64_t query_head) const {
  const int64_t width = call.carried_width;
  const float *carried = call.carried + panel.batch * call.carried_stride;
  std::vector<double> sums(static_cast<size_t>(width));
  for (int64_t query = 0; query < call.queries; query++) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t key = panel.keys.first; key < panel.keys.last; key++) {
      const double weight = panel.data[query * panel.stride + key - panel.keys.first];
      for (int64_t column = 0; column < width; column++) sums[size_t(column)] += weight * carried[key * width + column];
    }
    float *to = call.carried_sum + (query_head * call.queries + query) * width;
    for (int64_t column = 0; column < width; column++) to[column] = float(sums[size_t(column)] * panel.inverse[query]);
  }
}

template <class Source>
void Decode::sum_values(int64_t key_head, int64_t chunk) {
  const int64_t batch = key_head / call.kv_heads, first_row = key_head * rows, value_stride = call.value.stride[2];
  const auto *values = static_cast<const typename Source::Element *>(call.value.data) +
                       offset(call.value, batch, key_head % call.kv_heads, 0);
  const Range range = keys_of(batch, chunk);
  float *sums = partial.get() + (key_head * chunks + chunk) * rows * value_width;
  std::fill(sums, sums + rows * value_width, 0.0f);
  for (int64_t key = range.first; key < range.last; key += keys_together)
    for (int64_t row = 0; row < rows; row += rows_together)
      with_rows(rows - row, [&](auto together) {
        add_values<Source, together>(values + key * value_stride, value_stride, call.value_width,
                                     scores.get() + (first_row + row) * stride + key, stride,
                                     std::min(keys_together, range.last - key), sums + row * value_width, value_width);
      });
}

void Decode::write_output(int64_t key_head, int64_t thread) {
  for (int64_t row = key_head * rows; row < (key_head + 1) * rows; row++) write_output_row(row, thread);
}

void Decode::write_output_row(int64_t row, int64_t thread) {
  const int64_t key_head = row / rows, head = row / call.queries;
  float *sums = scratch[size_t(thread)].get();
  std::fill(sums, sums + value_width, 0.0f);
  for (int64_t chunk = 0; chunk < chunks; chunk++) {
    const float *part = partial.get() + ((key_head * chunks + chunk) * rows + row % rows) * value_width;
    for (int64_t column = 0; column < call.value_width; column++) sums[column] += part[column];
  }
  const auto finite = [&] {
    return std::all_of(sums, sums + call.value_width, [](float x) { return x - x == 0; });
  };
  if (!finite()) sum_carefully(row, 1, sums);
  for (int64_t column = 0; column < call.value_width; column++) sums[column] *= inverse[row];
  if (!finite()) sum_carefully(row, inverse[row], sums);  // very large values overflow unless weights are divided first
  write_row(call.output, head / call.heads, head % call.heads, row % call.queries, call.value_width, sums);
}

// The same over the visible keys alone, which have weights above 0: nobody's NaN reaches a query that does not see it.
// Behind the sums there is room for two rows.
void Decode::sum_carefully(int64_t row, float factor, float *sums) const {
  const int64_t key_head = row / rows, batch = key_head / call.kv_heads;
  float *part = sums + value_width, *value = part + value_width;
  std::fill(sums, sums + call.value_width, 0.0f);
  for (int64_t chunk = 0; chunk < chunks; chunk++) {
    const Range range = keys_of(batch, chunk);
    std::fill(part, part + call.value_width, 0.0f);
    for (int64_t key = range.first; key < range.last; key++) {
      const float weight = scores[row * stride + key] * factor;
      if (weight == 0) continue;
      read_row(call.value, batch, key_head % call.kv_heads, key, 0, call.value_width, value);
      for (int64_t column = 0; column < call.value_width; column++) part[column] += weight * value[column];
    }
    for (int64_t column = 0; column < call.value_width; column++) sums[column] += part[column];
  }
}

}  // namespace

void read_padded(const heedful_array &from, int64_t batch, int64_t head, int64_t begin, int64_t end, int64_t width,
                 float *to) {
  const int64_t stride = round_up(width, lanes);
  for (int64_t row = begin; row < end; row++, to += stride) {
    read_row(from, batch, head, row, 0, width, to);
    std::fill(to + width, to + stride, 0.0f);
  }
}

void score_few(const heedful_call &call, int64_t batch, int64_t group, const float *queries, int64_t rows, Range keys,
               float *scores, int64_t stride) {
  with_reader(call.key, [&](auto source) {
    score_with<decltype(source)>(call, batch, group, queries, rows, keys, scores, stride);
  });
}

bool suits_decode(const heedful_call &call) {
  return call.queries * (call.heads / call.kv_heads) <= few_rows && call.key.stride[3] == 1 &&
         call.value.stride[3] == 1;
}

void decode(const heedful_call &call) { Decode(call).run(); }

}  // namespace heedful
