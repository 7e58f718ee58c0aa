// Half precision in and out, in integer arithmetic, so that every instruction-set level rounds alike.
#pragma once

#include "vectors.h"

namespace heedful {

typedef uint16_t Halves __attribute__((vector_size(2 * lanes)));
typedef Halves LooseHalves __attribute__((aligned(2)));

inline Words load_halves(const uint16_t *from) {
  return __builtin_convertvector(*reinterpret_cast<const LooseHalves *>(from), Words);
}
inline void store_halves(uint16_t *to, Words x) {
  *reinterpret_cast<LooseHalves *>(to) = __builtin_convertvector(x, Halves);
}

inline Floats from_bfloat16(Words x) { return floats(x << 16); }

// To the nearest, ties to even.
inline Words to_bfloat16(Floats from) {
  Words x = words(from);
  Words rounded = (x + 0x7fff + ((x >> 16) & 1)) >> 16;
  return from == from ? rounded : ((x >> 16) | 0x40);
}

inline Floats from_float16(Words x) {
  Words sign = (x & 0x8000) << 16, shifted = (x & 0x7fff) << 13, exponent = shifted & (31u << 23);
  Words normal = shifted + (112u << 23);
  Words infinite = normal + (112u << 23);
  Words subnormal = words(floats(shifted + (113u << 23)) - floats((shifted & 0) + (113u << 23)));
  Words magnitude = exponent == (31u << 23) ? infinite : exponent == 0 ? subnormal : normal;
  return floats(magnitude | sign);
}

inline Words to_float16(Floats from) {
  Words x = words(from), sign = (x >> 16) & 0x8000, magnitude = x & 0x7fffffff;
  const Words half = (x & 0) + (126u << 23);  // 0.5: adding it shifts a subnormal's bits into place, rounded
  Words subnormal = words(floats(magnitude) + floats(half)) - half;
  Words normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  Words special = magnitude > 0x7f800000u ? (magnitude & 0) + 0x7e00 : (magnitude & 0) + 0x7c00;
  Words rounded = magnitude >= (143u << 23) ? special : magnitude < (113u << 23) ? subnormal : normal;
  return rounded | sign;
}

}  // namespace heedful
