// Reading an array as it lies in memory, a vector of floats at a time, whatever its dtype.
#pragma once

#include <algorithm>

#include "call.h"
#include "convert.h"

namespace heedful {

template <class T, int64_t dtype>
struct Reader {
  typedef T Element;
  static Floats read(const T *from) {
    if constexpr (dtype == HEEDFUL_BFLOAT16) return from_bfloat16(load_halves(from));
    if constexpr (dtype == HEEDFUL_FLOAT16) return from_float16(load_halves(from));
    if constexpr (dtype == HEEDFUL_FLOAT32) return load(from);
  }
  // The first n lanes, 0 in the others.
  static Floats read_some(const T *from, int64_t n) {
    if (n >= lanes) return read(from);
    T x[lanes] = {};
    std::copy(from, from + n, x);
    return read(x);
  }
};

typedef Reader<float, HEEDFUL_FLOAT32> FloatReader;

// Calls body with the reader of an array's dtype.
template <class Body>
void with_reader(const heedful_array &array, Body body) {
  if (array.dtype == HEEDFUL_BFLOAT16)
    body(Reader<uint16_t, HEEDFUL_BFLOAT16>());
  else if (array.dtype == HEEDFUL_FLOAT16)
    body(Reader<uint16_t, HEEDFUL_FLOAT16>());
  else
    body(FloatReader());
}

}  // namespace heedful
