// Scales and zeros of groups of inputs, in the types in which they are kept.

#pragma once

#include "product.h"

namespace native {

// Of bytes scales are unsigned, and zeros sixteenths with a sign.
enum class Factor { float32, bfloat16, bytes };

constexpr float ZERO_STEP = 1.0f / 16;

inline int64_t factor_bytes(Factor factor) { return factor == Factor::float32 ? 4 : factor == Factor::bfloat16 ? 2 : 1; }

// `WIDTH` bytes as integers; compilers take a conversion of vectors of different sizes apart.
template <bool SIGNED>
INLINE Integers integers(const uint8_t* from) {
#if WIDTH == 16
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return (Integers)(SIGNED ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
#elif WIDTH == 8
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return (Integers)(SIGNED ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
#else
  Integers found;
  for (int i = 0; i < WIDTH; ++i) found[i] = SIGNED ? static_cast<int8_t>(from[i]) : from[i];
  return found;
#endif
}

// Scales, or zeros, of neighbouring outputs from `place` on, of which there are `count`.
template <bool ZEROS, int VECTORS>
INLINE void read_factors(const void* array, Factor factor, int64_t place, int64_t count, Vector (&to)[VECTORS]) {
  const int64_t size = factor_bytes(factor);
  const uint8_t* from = static_cast<const uint8_t*>(array) + place * size;
  uint8_t copy[VECTORS * WIDTH * sizeof(float)] = {};
  if (count < VECTORS * WIDTH) from = static_cast<uint8_t*>(memcpy(copy, from, count * size));
  UNROLLED for (int v = 0; v < VECTORS; ++v) {
    const uint8_t* some = from + v * WIDTH * size;
    if (factor == Factor::float32) {
      to[v] = *reinterpret_cast<const Vector*>(some);
    } else if (factor == Factor::bfloat16) {
      to[v] = floats_of(reinterpret_cast<const uint16_t*>(some));
    } else {
      to[v] = __builtin_convertvector(integers<ZEROS>(some), Vector) * (ZEROS ? ZERO_STEP : 1.0f);
    }
  }
}

}  // namespace native
