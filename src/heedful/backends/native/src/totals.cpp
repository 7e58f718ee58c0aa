#include "totals.h"

namespace heedful {

namespace {

float larger_or_nan(float a, float b) { return a >= b || a != a ? a : b; }

// Sum and maximum over the rows [begin, end) of a panel, for the weights of one vector of columns.
struct Column {
  Floats sum = {}, most = {}, count = {};

  Column(const Panel &panel, int64_t column, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
      const Floats e = load(panel.data + row * panel.stride + column), weight = e * panel.inverse[row];
      sum += weight;
      most = larger(most, weight);
      count += from_bits(bits(all(1.0f)) & (e != 0.0f));
    }
  }
  float most_or_nan(int64_t i) const { return sum[i] == sum[i] ? most[i] : sum[i]; }
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
  if (call.received_sum || call.received_max || call.received_count) add_received(part, panel);
  if (call.profile) add_profile(part, panel);
  if (!call.map_sum && !call.map_max) return;
  for (int64_t begin = 0, end; begin < panel.rows; begin = end) {
    const int32_t *block = call.map_row + panel.begin;
    for (end = begin; end < panel.rows && block[end] == block[begin];) end++;
    add_map(part, panel, begin, end);
  }
}

void Totals::add_received(int64_t part, const Panel &panel) {
  double *sum = received_sum(part) + panel.keys.first;
  float *largest = received_max(part) + panel.keys.first, *count = received_count(part) + panel.keys.first;
  const int64_t width = panel.keys.last - panel.keys.first;
  for (int64_t column = 0; column < width; column += lanes) {
    const Column found(panel, column, 0, panel.rows);
    const int64_t n = std::min<int64_t>(lanes, width - column);
    if (call.received_sum)
      for (int64_t i = 0; i < n; i++) sum[column + i] += double(found.sum[i]);
    if (call.received_max)
      for (int64_t i = 0; i < n; i++) largest[column + i] = larger_or_nan(largest[column + i], found.most_or_nan(i));
    if (call.received_count)
      for (int64_t i = 0; i < n; i++) count[column + i] += found.count[i];
  }
}

// By signed distance: each row is added a little further to the left than the one before it.
void Totals::add_profile(int64_t part, const Panel &panel) {
  for (int64_t row = 0; row < panel.rows; row++) {
    Range seen = visible_range(call, panel.batch, panel.begin + row);
    const int64_t position = call.positions[panel.batch * call.position_stride + panel.begin + row];
    double *at = profile(part) + call.profile_size - 1 + seen.first - position;
    const float *x = panel.data + row * panel.stride + seen.first - panel.keys.first;
    const float inverse = panel.inverse[row];
    for (int64_t i = 0; i < seen.last - seen.first; i++) at[i] += double(x[i] * inverse);
  }
}

void Totals::add_map(int64_t part, const Panel &panel, int64_t begin, int64_t end) {
  const int64_t from = call.map_row[panel.begin + begin] * call.map_columns;
  double *sum = map_sum(part) + from;
  float *largest = map_max(part) + from;
  const int32_t *block = call.map_column + panel.keys.first;
  const float *scale = nullptr;
  if (call.map_scale) scale = call.map_scale + (panel.batch * call.heads + panel.head) * call.keys + panel.keys.first;
  const int64_t width = panel.keys.last - panel.keys.first;
  for (int64_t column = 0; column < width; column += lanes) {
    const Column found(panel, column, begin, end);
    for (int64_t i = 0, n = std::min<int64_t>(lanes, width - column); i < n; i++) {
      if (found.sum[i] == 0) continue;  // what nobody sees has no say, even with a scale that is not a number
      const float factor = scale ? scale[column + i] : 1;
      const int32_t to = block[column + i];
      if (call.map_sum) sum[to] += double(found.sum[i] * factor);
      if (call.map_max) largest[to] = larger_or_nan(largest[to], found.most_or_nan(i) * factor);
    }
  }
}

void Totals::write(int64_t query_head, int64_t first_part, int64_t parts) const {
  const auto summed = [&](const double *first, int64_t i) {
    double sum = 0;
    for (int64_t part = 0; part < parts; part++) sum += first[part * total_size() + i];
    return sum;
  };
  const auto largest = [&](const float *first, int64_t i) {
    float found = 0;
    for (int64_t part = 0; part < parts; part++) found = larger_or_nan(found, first[part * most_size() + i]);
    return found;
  };
  for (int64_t key = 0; key < call.keys; key++) {
    const int64_t to = query_head * call.keys + key;
    if (call.received_sum) call.received_sum[to] = float(summed(received_sum(first_part), key));
    if (call.received_max) call.received_max[to] = largest(received_max(first_part), key);
    if (!call.received_count) continue;
    call.received_count[to] = 0;
    for (int64_t part = first_part; part < first_part + parts; part++)
      call.received_count[to] += received_count(part)[key];
  }
  if (call.profile) {
    const double *middle = profile(first_part) + call.profile_size - 1;
    float *to = call.profile + query_head * call.profile_size;
    to[0] = float(summed(middle, 0));
    for (int64_t d = 1; d < call.profile_size; d++) to[d] = float(summed(middle, d) + summed(middle, -d));
  }
  const int64_t size = call.map_rows * call.map_columns;
  for (int64_t i = 0; i < cells(call.map_sum); i++)
    call.map_sum[query_head * size + i] = float(summed(map_sum(first_part), i));
  for (int64_t i = 0; i < cells(call.map_max); i++)
    call.map_max[query_head * size + i] = largest(map_max(first_part), i);
}

}  // namespace heedful
