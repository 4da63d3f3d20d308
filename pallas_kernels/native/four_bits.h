// Numbers of 4 bits, two outputs' in a byte, as bfloat16: looked up in a table of an output's group.

#pragma once

#include <math.h>

#include "product.h"

namespace native {

enum class Number { int4, float4, int8, float8_e4m3, float8_e5m2 };

// weight [outputs, inputs], or of 4 bits [outputs / 2, inputs]: output 2 j in the low bits of a byte. scales and zeros [groups,
// outputs] of float32 (`wide`) or bfloat16; zeros may be null. No groups: numbers are what they are.
struct Scaled {
  Number number;
  int64_t group, groups;
  bool wide;
  const void *scales, *zeros;

  bool paired() const { return number == Number::int4 || number == Number::float4; }
};

#if BFLOAT16_PAIRS
constexpr int64_t MOST_PANEL = PAIR_BLOCK;  // inputs that are made bfloat16 together: those of a tile
#else
constexpr int64_t MOST_PANEL = BLOCK;
#endif


typedef uint16_t Narrow __attribute__((vector_size(2 * WIDTH), aligned(2), may_alias));

// To the nearest bfloat16, ties to even: the upper halves.
INLINE Integers rounded(Vector values) {
  const Integers bits = (Integers)values;
  return bits + ((bits >> 16) & 1) + 0x7fff;
}

INLINE Narrow narrowed(Vector values) {
#if BFLOAT16_PAIRS
  return (Narrow)_mm512_cvtneps_pbh((__m512)values);
#else
  const Integers all = values != values ? (Integers)values | 0x400000 : rounded(values), upper = (all >> 16) & 0xffff;
#if WIDTH == 16
  return (Narrow)_mm512_cvtepi32_epi16((__m512i)upper);
#elif WIDTH == 8
  const __m256i packed = _mm256_packus_epi32((__m256i)upper, (__m256i)upper);
  return (Narrow)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
  return __builtin_convertvector(upper, Narrow);
#endif
#endif
}

// `(number - zero) * scale` of two outputs, in every lane; without `ZEROS` it is `number * scale`.
template <bool ZEROS>
struct PairOfLines {
  Vector zero[2], scale[2];

  INLINE_MEMBER PairOfLines(const Scaled& scaled, int64_t outputs, int64_t group, int64_t output) {
    const int64_t place = group * outputs + output;
    scale[0] = scale[1] = Vector{} + 1.0f;
    if (scaled.groups != 0) read(scaled.scales, scaled.wide, place, scale);
    if constexpr (ZEROS) read(scaled.zeros, scaled.wide, place, zero);
  }

 private:
  static INLINE_MEMBER void read(const void* from, bool wide, int64_t place, Vector (&found)[2]) {
    if (wide) {
      UNROLLED for (int q = 0; q < 2; ++q) {
        const float value = static_cast<const float*>(from)[place + q];
        found[q] = Vector{} + (value == value ? value : NAN);  // one that stays one when it is `rounded`
      }
    } else {
      uint32_t both;
      memcpy(&both, static_cast<const uint16_t*>(from) + place, sizeof(both));
      const Words all = Words{} + both;
      found[0] = (Vector)(all << 16), found[1] = (Vector)(all & 0xffff0000u);
    }
  }
};

// What each of 16 numbers of 4 bits is.
struct Table {
#if WIDTH == 8
  __m256i lower, upper;  // the bytes of a bfloat16, of all 16 in each half
#else
  Narrow values[16 / WIDTH];
#endif

  template <bool ZEROS>
  INLINE_MEMBER Table(Number number, const PairOfLines<ZEROS>& lines, int q)
      : Table(number, [&](Vector value) { return (ZEROS ? value - lines.zero[q] : value) * lines.scale[q]; }) {}

  // What `made` makes of each number.
  template <typename Made>
  INLINE_MEMBER Table(Number number, const Made& made) {
    alignas(64) static const float integers[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    alignas(64) static const float floats[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0f, -0.5, -1, -1.5, -2, -3, -4, -6};
    const float* from = number == Number::int4 ? integers : floats;
    const auto some = [&](int first) { return made(*reinterpret_cast<const Vector*>(from + first)); };
#if WIDTH == 8
    const __m256i lowers_then_uppers = _mm256_setr_epi8(2, 6, 10, 14, 3, 7, 11, 15, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                                        2, 6, 10, 14, 3, 7, 11, 15, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i behind = _mm256_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, 2, 6, 10, 14, 3, 7, 11, 15,  //
                                            -1, -1, -1, -1, -1, -1, -1, -1, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m256i all = _mm256_or_si256(_mm256_shuffle_epi8((__m256i)rounded(some(0)), lowers_then_uppers),
                                        _mm256_shuffle_epi8((__m256i)rounded(some(8)), behind));
    const __m256i sorted = _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7));
    lower = _mm256_permute2x128_si256(sorted, sorted, 0x00), upper = _mm256_permute2x128_si256(sorted, sorted, 0x11);
#else
    UNROLLED for (int i = 0; i < 16 / WIDTH; ++i) values[i] = narrowed(some(i * WIDTH));
#endif
  }

#if WIDTH == 16
  // Indices have five bits: of the fifth, which is the other number's, a table that is there twice knows nothing.
  INLINE_MEMBER __m512i twice() const { return _mm512_broadcast_i64x4((__m256i)values[0]); }
#endif

  uint16_t operator[](int number) const {
#if WIDTH == 8
    uint8_t lowers[32], uppers[32];
    memcpy(lowers, &lower, sizeof(lowers)), memcpy(uppers, &upper, sizeof(uppers));
    return static_cast<uint16_t>(uppers[number] << 8 | lowers[number]);
#else
    return values[number / WIDTH][number % WIDTH];
#endif
  }
};

#if WIDTH == 8
// 32 numbers, in bytes: those of the first half of each 16, and of the second.
INLINE void look_up(__m256i numbers, const Table& table, __m256i& first, __m256i& second) {
  const __m256i lower = _mm256_shuffle_epi8(table.lower, numbers), upper = _mm256_shuffle_epi8(table.upper, numbers);
  first = _mm256_unpacklo_epi8(lower, upper), second = _mm256_unpackhi_epi8(lower, upper);
}
#endif

// `count` bytes of two outputs' numbers, all of one group.
INLINE void expand_pairs(const uint8_t* from, int64_t count, const Table& low, const Table& high, uint16_t* to_low,
                         uint16_t* to_high) {
  int64_t done = 0;
#if WIDTH == 16
  const __m512i lows = low.twice(), highs = high.twice();
  for (; done + CHUNK <= count; done += CHUNK) {
    const __m512i bytes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + done)));
    _mm512_storeu_si512(to_low + done, _mm512_permutexvar_epi16(bytes, lows));
    _mm512_storeu_si512(to_high + done, _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 4), highs));
  }
  const __mmask32 rest = (__mmask32(1) << (count - done)) - 1;
  if (rest == 0) return;
  const __m512i bytes = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(rest, from + done));
  _mm512_mask_storeu_epi16(to_low + done, rest, _mm512_permutexvar_epi16(bytes, lows));
  _mm512_mask_storeu_epi16(to_high + done, rest, _mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 4), highs));
#else
#if WIDTH == 8
  const __m256i four = _mm256_set1_epi8(15);
  const auto store = [](__m256i numbers, const Table& table, uint16_t* to) __attribute__((always_inline)) {
    __m256i first, second;
    look_up(numbers, table, first, second);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute2x128_si256(first, second, 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 16), _mm256_permute2x128_si256(first, second, 0x31));
  };
  for (; done + CHUNK <= count; done += CHUNK) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + done));
    store(_mm256_and_si256(bytes, four), low, to_low + done);
    store(_mm256_and_si256(_mm256_srli_epi16(bytes, 4), four), high, to_high + done);
  }
#endif
  for (; done < count; ++done) to_low[done] = low[from[done] & 15], to_high[done] = high[from[done] >> 4];
#endif
}

}  // namespace native
