// A row of scores becomes a row of weights.
#pragma once

#include "topk.h"

namespace heedful {

// A row's weights are `inverse` times the numbers left in the panel. An empty row is what stands here.
struct RowSummary {
  float max_logit = -infinity;
  float base = -infinity, total = 1;                // the logsumexp is base + log(total)
  float above = 0;                                  // how far the base lies above max_logit
  float moment = 0;                                 // sum of the weights times (their logit - max_logit)
  float mass = 0;                                   // sum of the weights
  float inverse = 0;
  float top = 0;  // the score that became e^0
};

// A row whose sum is not a number has no weights: NaN wherever the query sees a key.
inline RowSummary spoil(float *x, int64_t n, float unseen, TopK &topk) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  topk.clear();
  for (int64_t i = 0; i < n; i++) {
    if (x[i] != unseen) topk.append(i);
    x[i] = x[i] == unseen ? 0 : nan;
  }
  return {nan, nan, nan, nan, nan, nan, 1, nan};
}

// `factor` turns a score into a logit; a score of -infinity is a pair that is not visible, and only occurs with `holes`.
// `topk` finds the largest scores before they are gone. It is called for every row: inlined, short rows take 5 % less.
[[gnu::always_inline]] inline RowSummary weigh_row(float *x, int64_t n, float factor, bool holes, float sink, TopK &topk) {
  RowSummary row;
  float maxima[num_maxima];
  const float most = row_maximum(x, n, maxima);
  topk.search(x, n, maxima);
  if (most == -infinity) {
    for (int64_t i = 0; i < n; i++)
      if (x[i] != x[i]) return spoil(x, n, -infinity, topk);
    std::fill(x, x + n, 0.0f);
    row.base = sink;
    return row;
  }
  row.max_logit = most * factor;
  const RowSums sums = holes ? row_exponentials<true>(x, n, most, factor) : row_exponentials<false>(x, n, most, factor);
  // The exponentials are those above the row's own maximum, whatever the sink: they tell the keys apart even where the
  // sink leaves next to nothing. The sum is taken above the larger of the two, so that it cannot overflow.
  const float above = std::min(sink - row.max_logit, std::numeric_limits<float>::max());
  const float shrink = above > 0 ? std::exp(-above) : 1;
  const float of_sink = above > 0 ? 1 : sink == -infinity ? 0 : std::exp(above);
  const float total = sums.mass * shrink + of_sink;
  if (!(total < infinity) || sums.moment != sums.moment) return spoil(x, n, holes ? 0 : -infinity, topk);
  row.base = above > 0 ? sink : row.max_logit;
  row.above = std::max(above, 0.0f);
  row.total = total;
  row.inverse = shrink / total;
  row.moment = sums.moment * factor * row.inverse;
  row.mass = sums.mass * row.inverse;
  row.top = most;
  return row;
}

}  // namespace heedful
