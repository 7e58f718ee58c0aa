// Answers taken from a panel of weights while it is in the cache.
#pragma once

#include <algorithm>

#include "logits.h"
#include "plan.h"
#include "topk.h"
#include "weigh.h"

namespace heedful {

inline int64_t row_number(const heedful_call &call, const RowPlace &row) {
  return (row.batch * call.heads + row.head) * call.queries + row.query;
}

// In the functions below, `x` begins at the row's first key.

inline void answer_summary(const heedful_call &call, const RowPlace &row, const RowSummary &found) {
  const int64_t at = row_number(call, row);
  if (call.logsumexp) call.logsumexp[at] = found.logsumexp;
  if (call.max_logit) call.max_logit[at] = found.max_logit;
  if (call.entropy) call.entropy[at] = found.entropy;
  if (call.mass) call.mass[at] = found.mass;
  if (call.row_state) {
    call.row_state[2 * at] = found.top;
    call.row_state[2 * at + 1] = found.inverse;
  }
}

inline void answer_weights(const heedful_call &call, const RowPlace &row, const RowSummary &found, const float *x) {
  float *to = call.weights + row_number(call, row) * call.keys;
  std::fill(to, to + row.first, 0.0f);
  for (int64_t i = 0; i < row.size; i++) to[row.first + i] = x[i] * found.inverse;
  std::fill(to + row.first + row.size, to + call.keys, 0.0f);
}

inline void answer_topk(const heedful_call &call, const RowPlace &row, const RowSummary &found, const float *x,
                        const std::vector<TopK::Candidate> &best) {
  float *weight = call.topk_weight + row_number(call, row) * call.topk;
  int64_t *key = call.topk_key + row_number(call, row) * call.topk;
  for (int64_t i = 0; i < call.topk; i++) {
    const bool some = i < int64_t(best.size());
    weight[i] = some ? x[best[i].key - row.first] * found.inverse : 0;
    key[i] = some ? best[i].key : -1;
  }
}

inline void answer_mean_distance(const heedful_call &call, const RowPlace &row, const float *x) {
  const int64_t position = position_of(call, row) - row.first;
  Floats moment = {}, mass = {};
  for (int64_t i = 0; i < row.size; i += lanes) {
    const Floats e = load_some(x + i, row.size - i, 0);
    const Ints ahead = lane_numbers() + int32_t(i - position);
    moment += e * __builtin_convertvector(ahead < 0 ? -ahead : ahead, Floats);
    mass += e;
  }
  const float total = sum(mass);
  call.mean_distance[row_number(call, row)] = total > 0 ? sum(moment) / total : 0;
}

inline float larger_or_nan(float a, float b) { return a >= b || a != a ? a : b; }

// Rows of weights, side by side.
struct Panel {
  const float *data;
  int64_t rows, stride;
  const float *inverse;
};

// What keys receive, for one head. Sums are in double precision, since many panels add up.
struct Received {
  double *sum;
  float *most, *count;
};

inline void clear(const Received &received, int64_t keys) {
  if (received.sum) std::fill(received.sum, received.sum + keys, 0.0);
  if (received.most) std::fill(received.most, received.most + keys, 0.0f);
  if (received.count) std::fill(received.count, received.count + keys, 0.0f);
}

// Adds what the rows of a panel give, whose first column is `keys.first`.
inline void add_received(const Panel &panel, Range keys, const Received &received) {
  for (int64_t column = 0; column < keys.last - keys.first; column += lanes) {
    Floats total = {}, highest = {}, count = {};
    for (int64_t row = 0; row < panel.rows; row++) {
      const Floats e = load(panel.data + row * panel.stride + column), weight = e * panel.inverse[row];
      total += weight;
      highest = larger(highest, weight);
      count += from_bits(bits(all(1.0f)) & (e != 0.0f));
    }
    const int64_t key = keys.first + column, n = std::min<int64_t>(lanes, keys.last - key);
    if (received.sum)
      for (int64_t i = 0; i < n; i++) received.sum[key + i] += double(total[i]);
    if (received.most)
      for (int64_t i = 0; i < n; i++)
        received.most[key + i] = larger_or_nan(received.most[key + i], total[i] == total[i] ? highest[i] : total[i]);
    if (received.count)
      for (int64_t i = 0; i < n; i++) received.count[key + i] += count[i];
  }
}

// The scores of one row, from its first visible key on, become weights, and what is asked about the row is answered.
// `scratch` holds one row.
inline RowSummary finish_row(const heedful_call &call, const RowPlace &row, float *x, TopK &topk, float *scratch) {
  const bool plain = only_scaled(call);
  const float sink = call.sinks ? call.sinks[row.head] : -infinity;
  if (!plain) shape_row(call, row, x, scratch);
  const RowSummary found = weigh_row(x, row.size, plain ? call.scale : 1, !plain, sink, topk, row.first);
  answer_summary(call, row, found);
  if (call.topk) answer_topk(call, row, found, x, topk.best());
  if (call.weights) answer_weights(call, row, found, x);
  if (call.mean_distance) answer_mean_distance(call, row, x);
  return found;
}

}  // namespace heedful
