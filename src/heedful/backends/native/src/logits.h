// From a dot product to a logit: scale, softcap, bias, mask, in this order.
#pragma once

#include "packing.h"
#include "softmax.h"

namespace heedful {

inline bool given(const heedful_array &array) { return array.data != nullptr; }

// Whether a logit is the dot product times a positive scale and nothing else: then the scale is left to the
// exponential.
inline bool only_scaled(const heedful_call &call) {
  return call.scale > 0 && call.softcap == 0 && !given(call.bias) && !given(call.mask) && !call.slopes;
}

inline Floats tanh(Floats y) {
  const Floats size = from_bits(bits(y) & 0x7fffffff), square = y * y;
  Floats p = all(-0.0058951341f);
  p = p * square + 0.020795953f;
  p = p * square + -0.053783827f;
  p = p * square + 0.13331924f;
  p = p * square + -0.33333299f;
  const Floats small = y + y * square * p;
  const Floats e = exp_scaled(larger(all(-43), -size), 2);
  const Floats big = from_bits(bits((1.0f - e) / (1.0f + e)) | (bits(y) & ~0x7fffffff));
  const Ints near = (size < all(0.6f)) | (size != size);
  return near ? small : big;
}

struct RowPlace {
  int64_t batch, head, query;
  int64_t first, size;  // the keys it sees: [first, first + size)
};

inline int64_t position_of(const heedful_call &call, const RowPlace &row) {
  return call.positions[row.batch * call.position_stride + row.query];
}

// How far the keys from `ahead` places ahead on are, lane by lane.
inline Floats distances(int64_t ahead) {
  return from_bits(bits(__builtin_convertvector(lane_numbers(), Floats) + float(ahead)) & 0x7fffffff);
}

// Turns the dot products of one row into logits, in place. A pair that may not be seen becomes -infinity, whatever was
// there before. `scratch` holds one row, and so does `slope`, if it is wanted: how the cap changes with what it caps.
inline void shape_row(const heedful_call &call, const RowPlace &row, float *x, float *scratch, float *slope = nullptr) {
  const auto each = [&](auto change) {
    for (int64_t i = 0; i < row.size; i += lanes) {
      const int64_t n = row.size - i;
      store_some(x + i, change(load_some(x + i, n, 0), i), n);
    }
  };
  each([&](Floats s, int64_t) { return s * call.scale; });
  if (call.softcap > 0)
    each([&](Floats s, int64_t i) {
      const Floats y = tanh(s / call.softcap);
      if (slope) store_some(slope + i, 1.0f - y * y, row.size - i);
      return call.softcap * y;
    });
  if (call.slopes) {
    const float slope = call.slopes[row.head];
    const int64_t position = position_of(call, row) - row.first;
    each([&](Floats s, int64_t i) { return s - slope * distances(i - position); });
  }
  if (given(call.bias)) {
    const float *bias = row_of(call.bias, row.batch, row.head, row.query, row.first, row.first + row.size, scratch);
    each([&](Floats s, int64_t i) {
      Floats b = load_some(bias + i, row.size - i, 0);
      return b == all(-infinity) ? b : s + b;
    });
  }
  if (given(call.mask)) {
    const int64_t step = call.mask.stride[3];
    const uint8_t *keep = static_cast<const uint8_t *>(call.mask.data) +
                          offset(call.mask, row.batch, row.head, row.query) + row.first * step;
    if (step == 1)
      for (int64_t i = 0; i < row.size; i++) x[i] = keep[i] ? x[i] : -infinity;
    else
      for (int64_t i = 0; i < row.size; i++) x[i] = keep[i * step] ? x[i] : -infinity;
  }
}

}  // namespace heedful
