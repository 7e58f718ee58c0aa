// One row of scores, as it turns into weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "vectors.h"

namespace heedful {

constexpr float infinity = std::numeric_limits<float>::infinity();

// Largest scores seen by each lane of four vectors: their maximum is the row's, and since each is a score of another
// key, their k-th largest is at most the row's (see topk.h).
constexpr int num_maxima = 4 * lanes;

inline float row_maximum(const float *x, int64_t n, float maxima[num_maxima]) {
  Floats most[4] = {all(-infinity), all(-infinity), all(-infinity), all(-infinity)};
  int64_t i = 0;
  for (; i + num_maxima <= n; i += num_maxima)
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) most[v] = larger(load(x + i + v * lanes), most[v]);
  for (int v = 0; i < n; v++, i += lanes) most[v] = larger(load_some(x + i, n - i, -infinity), most[v]);
  for (int v = 0; v < 4; v++) store(maxima + v * lanes, most[v]);
  return largest(larger(larger(most[0], most[1]), larger(most[2], most[3])));
}

// How far a score lies below the row's largest, `top`, but no further than e^-87: there a float is next to 0, and what
// can be seen stays apart from what cannot.
constexpr float next_to_nothing = 1.7e-38f;
inline Floats below(float top, Floats score, float factor) {
  const float lowest = std::max(-87.0f / factor, std::numeric_limits<float>::lowest());
  return larger(all(lowest), score - top);
}

struct RowSums {
  float mass = 0;    // sum of e
  float moment = 0;  // sum of e * (x - maximum): NaN where a score is
};

// x becomes e^((x - maximum) * factor), not yet divided by its sum; everything up to the next whole vector becomes 0.
// With `holes`, a score of -infinity is a pair that is not visible and becomes exactly 0; all others stay above 0.
template <bool holes>
[[gnu::always_inline]] inline RowSums row_exponentials(float *x, int64_t n, float maximum, float factor) {
  Floats mass[2] = {}, moment[2] = {};
  auto step = [&](int64_t i, int v, Floats score, bool partial) {
    Floats t = below(maximum, score, factor);
    Floats e = exp_scaled(t, factor);
    if (holes || partial) e = from_bits(bits(e) & (score != all(-infinity)));
    mass[v] += e;
    moment[v] += e * t;
    store(x + i, e);
  };
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    step(i, 0, load(x + i), false);
    step(i + lanes, 1, load(x + i + lanes), false);
  }
  for (; i < n; i += lanes) step(i, 0, load_some(x + i, n - i, -infinity), true);
  return {sum(mass[0] + mass[1]), sum(moment[0] + moment[1])};
}

}  // namespace heedful
