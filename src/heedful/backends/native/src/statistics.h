// Answers about one row, taken while it is in the cache.
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
  if (call.logsumexp || call.entropy) {
    const float log_total = std::log(found.total);
    if (call.logsumexp) call.logsumexp[at] = found.base + log_total;
    if (call.entropy) call.entropy[at] = (found.above + log_total) * found.mass - found.moment;
  }
  if (call.max_logit) call.max_logit[at] = found.max_logit;
  if (call.mass) call.mass[at] = found.mass;
  if (call.row_state) {
    call.row_state[2 * at] = found.top;
    call.row_state[2 * at + 1] = found.inverse;
  }
}

inline void answer_weights(const heedful_call &call, const RowPlace &row, const RowSummary &found, const float *x) {
  float *to = call.weights + row_number(call, row) * call.keys;
  std::fill(to, to + row.first, 0.0f);
  for (int64_t i = 0; i < row.size; i++) to[row.first + i] = x[i] <= next_to_nothing ? 0 : x[i] * found.inverse;
  std::fill(to + row.first + row.size, to + call.keys, 0.0f);
}

inline void answer_topk(const heedful_call &call, const RowPlace &row, const RowSummary &found, const float *x,
                        const TopK &found_keys) {
  float *weight = call.topk_weight + row_number(call, row) * call.topk;
  int64_t *key = call.topk_key + row_number(call, row) * call.topk;
  const int64_t *best = found_keys.best();
  for (int64_t i = 0; i < found_keys.size(); i++) {
    weight[i] = x[best[i]] * found.inverse;
    key[i] = row.first + best[i];
  }
  std::fill(weight + found_keys.size(), weight + call.topk, 0.0f);
  std::fill(key + found_keys.size(), key + call.topk, int64_t(-1));
}

inline void answer_mean_distance(const heedful_call &call, const RowPlace &row, const float *x) {
  const int64_t position = position_of(call, row) - row.first;
  Floats moment = {}, mass = {};
  for (int64_t i = 0; i < row.size; i += lanes) {
    const Floats e = load_some(x + i, row.size - i, 0);
    moment += e * distances(i - position);
    mass += e;
  }
  const float total = sum(mass);
  call.mean_distance[row_number(call, row)] = total > 0 ? sum(moment) / total : 0;
}

// The scores of one row, from its first visible key on, become weights, and what is asked about the row is answered.
// `scratch` holds one row.
inline RowSummary finish_row(const heedful_call &call, const RowPlace &row, float *x, TopK &topk, float *scratch) {
  const bool plain = only_scaled(call);
  const float sink = call.sinks ? call.sinks[row.head] : -infinity;
  if (!plain) shape_row(call, row, x, scratch);
  const RowSummary found = weigh_row(x, row.size, plain ? call.scale : 1, !plain, sink, topk);
  answer_summary(call, row, found);
  if (call.topk) answer_topk(call, row, found, x, topk);
  if (call.weights) answer_weights(call, row, found, x);
  if (call.mean_distance) answer_mean_distance(call, row, x);
  return found;
}

}  // namespace heedful
