// Vectors of floats as wide as the machine's registers, in the compiler's own vector types: the same source serves
// SSE, AVX2, AVX-512 and NEON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace heedful {

// A tile is what the registers hold of a matrix product: tile_rows x (tile_vectors * lanes) sums.
#if defined(__AVX512F__)
constexpr int lanes = 16, tile_vectors = 4;
#elif defined(__AVX2__)
constexpr int lanes = 8, tile_vectors = 2;
#elif defined(__aarch64__)
constexpr int lanes = 4, tile_vectors = 4;
#else
constexpr int lanes = 4, tile_vectors = 2;
#endif
constexpr int tile_rows = 6, tile_columns = lanes * tile_vectors;

typedef float Floats __attribute__((vector_size(4 * lanes)));
typedef int32_t Ints __attribute__((vector_size(4 * lanes)));
typedef uint32_t Words __attribute__((vector_size(4 * lanes)));
typedef Floats LooseFloats __attribute__((aligned(4)));

inline Floats load(const float *from) { return *reinterpret_cast<const LooseFloats *>(from); }
inline void store(float *to, Floats x) { *reinterpret_cast<LooseFloats *>(to) = x; }
inline Floats all(float x) { return x - Floats{}; }

inline Ints bits(Floats x) { return reinterpret_cast<Ints>(x); }
inline Floats from_bits(Ints x) { return reinterpret_cast<Floats>(x); }
inline Words words(Floats x) { return reinterpret_cast<Words>(x); }
inline Floats floats(Words x) { return reinterpret_cast<Floats>(x); }

// b where a is not greater, so a NaN in b survives.
inline Floats larger(Floats a, Floats b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_max_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<Floats>(_mm256_max_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#elif defined(__x86_64__)
  return reinterpret_cast<Floats>(_mm_max_ps(reinterpret_cast<__m128>(a), reinterpret_cast<__m128>(b)));
#else
  return a > b ? a : b;
#endif
}

// One bit per lane in which a comparison holds.
inline uint64_t lane_bits(Ints truth) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(truth));
#elif defined(__AVX2__)
  return uint64_t(_mm256_movemask_ps(reinterpret_cast<__m256>(truth)));
#elif defined(__x86_64__)
  return uint64_t(_mm_movemask_ps(reinterpret_cast<__m128>(truth)));
#else
  uint64_t found = 0;
  for (int i = 0; i < lanes; i++) found |= uint64_t(truth[i] & 1) << i;
  return found;
#endif
}

// One bit per lane that is no less than a bound.
inline uint64_t lanes_at_least(Floats x, float bound) {
#if defined(__AVX512F__)  // compilers do not see that the comparison below is one instruction here
  return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(x), _mm512_set1_ps(bound), _CMP_GE_OQ);
#else
  return lane_bits(x >= bound);
#endif
}

inline bool any(Ints truth) { return lane_bits(truth) != 0; }

inline Ints lane_numbers() {
  Ints n;
  for (int i = 0; i < lanes; i++) n[i] = i;
  return n;
}

// The first n lanes from memory, `fill` in the others.
inline Floats load_some(const float *from, int64_t n, float fill) {
  if (n >= lanes) return load(from);
  float x[lanes];
  for (int i = 0; i < lanes; i++) x[i] = i < n ? from[i] : fill;
  return load(x);
}

inline void store_some(float *to, Floats x, int64_t n) {
  if (n >= lanes) return store(to, x);
  for (int i = 0; i < n; i++) to[i] = x[i];
}

// The two halves of a and b, lane by lane in turn: a0 b0 a1 b1 ...
inline Floats interleave(Floats a, Floats b, bool upper) {
  Ints index = lane_numbers();
  index = (index >> 1) + (index & 1) * lanes + (upper ? lanes / 2 : 0);
#if defined(__clang__)
  Floats mixed;
  for (int i = 0; i < lanes; i++) mixed[i] = index[i] < lanes ? a[index[i]] : b[index[i] - lanes];
  return mixed;
#else
  return __builtin_shuffle(a, b, index);
#endif
}

// Lane i holds what lane i ^ width held.
inline Floats swap_lanes(Floats x, int width) {
#if defined(__clang__)
  Floats swapped;
  for (int i = 0; i < lanes; i++) swapped[i] = x[i ^ width];
  return swapped;
#else
  return __builtin_shuffle(x, lane_numbers() ^ width);
#endif
}

inline float sum(Floats x) {
#pragma GCC unroll 4
  for (int width = lanes / 2; width > 0; width /= 2) x += swap_lanes(x, width);
  return x[0];
}

inline float largest(Floats x) {
#pragma GCC unroll 4
  for (int width = lanes / 2; width > 0; width /= 2) x = larger(x, swap_lanes(x, width));
  return x[0];
}

// e^(x * factor) for x * factor from -87 to 0: the smallest result is next to the smallest float. Of a NaN
// whose lowest bits are set it makes a number: callers look for NaN elsewhere.
// 2^y = 2^n * 2^f with n the nearest integer: 2^f by a polynomial, n added to the exponent bits.
inline Floats exp_scaled(Floats x, float factor) {
  const float rounder = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  factor *= 1.44269504088896341f;     // 1 / ln 2
  Floats shifted = x * factor + rounder;
  Floats f = x * factor - (shifted - rounder);
  Floats p = all(0.00015353362f);
  p = p * f + 0.0013398875f;
  p = p * f + 0.0096184369f;
  p = p * f + 0.055503324f;
  p = p * f + 0.24022648f;
  p = p * f + 0.69314718f;
  p = p * f + 1.0f;
  return floats(words(p) + (words(shifted) << 23));
}

}  // namespace heedful
