#include "totals.h"

namespace heedful {

namespace {

float larger_or_nan(float a, float b) { return a >= b || a != a ? a : b; }
Floats larger_or_nan(Floats a, Floats b) { return ((a >= b) | (a != a)) ? a : b; }

void add_some(double *to, Floats x, int64_t n) {
  float each[lanes];
  store(each, x);
  if (n >= lanes)
    for (int i = 0; i < lanes; i++) to[i] += double(each[i]);
  else
    for (int64_t i = 0; i < n; i++) to[i] += double(each[i]);
}

// Sums over the rows [begin, end) of a panel, for the weights of one vector of columns; and the largest weights and how
// many are not 0, where that is wanted.
template <bool sum_only>
struct Column {
  Floats sum = {}, most = {}, count = {};

  Column(const Panel &panel, int64_t column, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
      const Floats e = load(panel.data + row * panel.stride + column), weight = e * panel.inverse[row];
      sum += weight;
      if constexpr (sum_only) continue;
      most = larger(most, weight);
      count += from_bits(bits(all(1.0f)) & (e != 0.0f));
    }
    most = sum == sum ? most : sum;  // a NaN is larger than all
  }
};

}  // namespace

void Totals::reserve(int64_t parts) {
  total = Buffer<double>(parts * total_size());
  most = Buffer<float>(parts * most_size());
}

void Totals::clear(int64_t part) {
  std::fill(received_sum(part), received_sum(part) + total_size(), 0.0);
  std::fill(received_max(part), received_max(part) + most_size(), 0.0f);
}

void Totals::add(int64_t part, const Panel &panel) {
  if (call.received_max || call.received_count)
    add_received<false>(part, panel);
  else if (call.received_sum)
    add_received<true>(part, panel);
  if (call.profile) add_profile(part, panel);
  if (!call.map_sum && !call.map_max) return;
  for (int64_t begin = 0, end; begin < panel.rows; begin = end) {
    const int32_t *block = call.map_row + panel.begin;
    for (end = begin; end < panel.rows && block[end] == block[begin];) end++;
    add_map(part, panel, begin, end);
  }
}

template <bool sum_only>
void Totals::add_received(int64_t part, const Panel &panel) {
  double *sum = received_sum(part) + panel.keys.first;
  float *most = received_max(part) + panel.keys.first, *count = received_count(part) + panel.keys.first;
  const int64_t width = panel.keys.last - panel.keys.first;
  for (int64_t column = 0; column < width; column += lanes) {
    const Column<sum_only> found(panel, column, 0, panel.rows);
    const int64_t n = width - column;
    if (call.received_sum) add_some(sum + column, found.sum, n);
    if (call.received_max)
      store_some(most + column, larger_or_nan(load_some(most + column, n, 0), found.most), n);
    if (call.received_count) store_some(count + column, load_some(count + column, n, 0) + found.count, n);
  }
}

// By signed distance: each row is added a little further to the left than the one before it.
void Totals::add_profile(int64_t part, const Panel &panel) {
  for (int64_t row = 0; row < panel.rows; row++) {
    const Range seen = visible_range(call, panel.batch, panel.begin + row, panel.keys);
    const int64_t position = call.positions[panel.batch * call.position_stride + panel.begin + row];
    double *at = profile(part) + call.profile_size - 1 + seen.first - position;
    const float *x = panel.data + row * panel.stride + seen.first - panel.keys.first;
    const float inverse = panel.inverse[row];
    for (int64_t i = 0; i < seen.last - seen.first; i++) at[i] += double(x[i] * inverse);
  }
}

void Totals::add_map(int64_t part, const Panel &panel, int64_t begin, int64_t end) {
  const int64_t from = call.map_row[panel.begin + begin] * call.map_columns;
  double *total = map_sum(part) + from;
  float *largest = map_max(part) + from;
  const int32_t *block = call.map_column + panel.keys.first;
  const float *scale = nullptr;
  if (call.map_scale) scale = call.map_scale + (panel.batch * call.heads + panel.head) * call.keys + panel.keys.first;
  const auto add_to_map = [&](int32_t to, double mass, float most) {
    if (call.map_sum) total[to] += mass;
    if (call.map_max) largest[to] = larger_or_nan(largest[to], most);
  };
  const int64_t width = panel.keys.last - panel.keys.first;
  for (int64_t column = 0; column < width; column += lanes) {
    const Column<false> found(panel, column, begin, end);
    const int64_t n = std::min<int64_t>(lanes, width - column);
    const Floats factor = scale ? load_some(scale + column, n, 0) : all(1);
    // What nobody sees has no say, even with a scale that is not a number.
    const Ints seen = (found.sum != 0) & (lane_numbers() < int32_t(n));
    const Floats mass = seen ? found.sum * factor : all(0), most = seen ? found.most * factor : all(0);
    if (block[column] == block[column + n - 1]) {
      add_to_map(block[column], double(sum(mass)), any(most != most) ? sum(mass) : heedful::largest(most));
      continue;
    }
    for (int64_t i = 0; i < n; i++) add_to_map(block[column + i], double(mass[i]), most[i]);
  }
}

// All parts are added to the first.
void Totals::merge(int64_t first, int64_t parts) const {
  double *to = received_sum(first);
  float *most = received_max(first), *count = received_count(first), *map = map_max(first);
  for (int64_t part = first + 1; part < first + parts; part++) {
    for (int64_t i = 0; i < total_size(); i++) to[i] += received_sum(part)[i];
    for (int64_t i = 0; i < keys_if(call.received_max); i++) most[i] = larger_or_nan(most[i], received_max(part)[i]);
    for (int64_t i = 0; i < keys_if(call.received_count); i++) count[i] += received_count(part)[i];
    for (int64_t i = 0; i < cells(call.map_max); i++) map[i] = larger_or_nan(map[i], map_max(part)[i]);
  }
}

void Totals::write(int64_t query_head, int64_t first, int64_t parts) const {
  merge(first, parts);
  const auto answer = [&](float *to, const auto *from, int64_t size) {
    if (to) std::copy(from, from + size, to + query_head * size);
  };
  answer(call.received_sum, received_sum(first), call.keys);
  answer(call.received_max, received_max(first), call.keys);
  answer(call.received_count, received_count(first), call.keys);
  answer(call.map_sum, map_sum(first), call.map_rows * call.map_columns);
  answer(call.map_max, map_max(first), call.map_rows * call.map_columns);
  if (!call.profile) return;
  const double *middle = profile(first) + call.profile_size - 1;
  float *to = call.profile + query_head * call.profile_size;
  to[0] = float(middle[0]);
  for (int64_t d = 1; d < call.profile_size; d++) to[d] = float(middle[d] + middle[-d]);
}

}  // namespace heedful
