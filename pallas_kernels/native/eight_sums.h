// Sums of products of numbers of 8 bits with rows of 16, and of 4 bits with rows of 8, eight at once: in int32, whose bits no order has a
// say in. Numbers of 4 bits are multiplied so where there are no wide vectors: others have `fixed_lanes.h`.

#pragma once

#include "float_tile.h"

namespace native {

enum class Number { int4, float4, int8, float8_e4m3, float8_e5m2 };

constexpr bool is_paired(Number number) { return number == Number::int4 || number == Number::float4; }

// What is added to numbers of 4 bits, so that none is below zero. Those of float4 are taken twice: then they are integers.
constexpr int32_t offset_of(Number number) { return number == Number::int4 ? 8 : number == Number::float4 ? 12 : 0; }

// Bytes of int4 need not be taken apart where products do not saturate: with what is above the first numbers, 16 times the second ones.
constexpr int32_t times_of_second(Number number) { return number == Number::int4 && INTEGER_QUADS ? 16 : 1; }

typedef int32_t Eight __attribute__((vector_size(32), aligned(4), may_alias));

// Of a packed matrix of 4 bits four inputs each of so many lines lie together, and lines of two outputs each.
constexpr int64_t PACKED_LINES = 8, PACKED_OUTPUTS = 2 * PACKED_LINES, PACKED_INPUTS = 4;

// What a row's integers are: of as many bits as lose little beside what the matrix has lost (`benchmarks/rounded_rows.py`).
template <Number NUMBER>
using RowOf = std::conditional_t<is_paired(NUMBER), int8_t, int16_t>;

// Sums of R rows, of as many outputs each as make eight, row by row. A line of a matrix is an output's, or of 4 bits two outputs'.
template <Number NUMBER, int R>
struct EightOf {
  static constexpr int OUTPUTS = 8 / R, EACH = is_paired(NUMBER) ? 2 : 1, LINES = OUTPUTS / EACH;
  const uint8_t* lines[LINES];
  const RowOf<NUMBER>* x;  // rows `x_stride` apart, which go on with zeros to a multiple of 32
  int64_t x_stride;
  const uint8_t* following;  // is asked for meanwhile
  bool packed;               // lines go on PACKED_LINES * PACKED_INPUTS bytes later
};

#if WIDTH >= 8
typedef int16_t Shorts __attribute__((vector_size(4 * WIDTH), aligned(2), may_alias));
constexpr int64_t SHORTS = 2 * WIDTH;

INLINE Shorts shorts_of(const uint8_t* from) {
#if WIDTH == 16
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return (Shorts)_mm512_cvtepi8_epi16(bytes);
#else
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return (Shorts)_mm256_cvtepi8_epi16(bytes);
#endif
}

// `sum` and the products of pairs of neighbours.
INLINE Integers plus_products(Integers sum, Shorts a, Shorts b) {
#if INTEGER_QUADS
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
#elif WIDTH == 16
  return sum + (Integers)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#else
  return sum + (Integers)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#endif
}

INLINE Eight lanes_added(const Integers (&sums)[8]) {
  __m256i all[8];
#if WIDTH == 16
  UNROLLED for (int i = 0; i < 8; ++i) {
    const __m512i sum = (__m512i)sums[i];
    all[i] = _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
  }
#else
  UNROLLED for (int i = 0; i < 8; ++i) all[i] = (__m256i)sums[i];
#endif
  const __m256i first = _mm256_hadd_epi32(_mm256_hadd_epi32(all[0], all[1]), _mm256_hadd_epi32(all[2], all[3]));
  const __m256i second = _mm256_hadd_epi32(_mm256_hadd_epi32(all[4], all[5]), _mm256_hadd_epi32(all[6], all[7]));
  return (Eight)_mm256_permute2x128_si256(first, second, 0x20) + (Eight)_mm256_permute2x128_si256(first, second, 0x31);
}

// Of the inputs [first, last).
template <Number NUMBER, int R>
INLINE Eight eight_sums(const EightOf<NUMBER, R>& of, int64_t first, int64_t last) {
  static_assert(NUMBER == Number::int8, "a byte each");
  constexpr int LINES = EightOf<NUMBER, R>::LINES;
  Integers sums[8] = {};
  const auto step = [&](const uint8_t* const* from, int64_t at, int64_t done) __attribute__((always_inline)) {
    Shorts rows[R];
    UNROLLED for (int r = 0; r < R; ++r) {
      rows[r] = *reinterpret_cast<const Shorts*>(of.x + r * of.x_stride + done);
      IN_REGISTER(rows[r]);
    }
    UNROLLED for (int line = 0; line < LINES; ++line) {
      const Shorts numbers = shorts_of(from[line] + at);
      UNROLLED for (int r = 0; r < R; ++r) sums[r * LINES + line] = plus_products(sums[r * LINES + line], numbers, rows[r]);
    }
  };
  int64_t done = first;
  for (; done + SHORTS <= last; done += SHORTS) {
    UNROLLED for (int byte = 0; byte < LINES * SHORTS; byte += LINE) __builtin_prefetch(of.following + LINES * done + byte, 0, 2);
    step(of.lines, done, done);
  }
  if (done < last) {  // what is behind a line may belong to nobody
    uint8_t rest[LINES][SHORTS] = {};
    const uint8_t* from[LINES];
    for (int line = 0; line < LINES; ++line) {
      from[line] = static_cast<uint8_t*>(memcpy(rest[line], of.lines[line] + done, last - done));
    }
    step(from, 0, done);
  }
  return lanes_added(sums);
}
#else
template <Number NUMBER, int R>
INLINE Eight eight_sums(const EightOf<NUMBER, R>& of, int64_t first, int64_t last) {
  static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  constexpr int EACH = EightOf<NUMBER, R>::EACH, OUTPUTS = EightOf<NUMBER, R>::OUTPUTS;
  Eight sums = {};
  for (int i = 0; i < 8; ++i) {
    const uint8_t* line = of.lines[i % OUTPUTS / EACH];
    const RowOf<NUMBER>* row = of.x + i / OUTPUTS * of.x_stride;
    int32_t sum = 0;
    for (int64_t input = first; input < last; ++input) {
      const uint8_t byte = line[of.packed ? input / PACKED_INPUTS * PACKED_LINES * PACKED_INPUTS + input % PACKED_INPUTS : input];
      int32_t number = static_cast<int8_t>(byte);
      if constexpr (is_paired(NUMBER)) {
        number = i % 2 ? byte >> 4 : byte & 15;
        if constexpr (NUMBER == Number::float4) number = twice[number] + offset_of(NUMBER);
      }
      sum += number * row[input];
    }
    sums[i] = sum;
  }
  return sums;
}
#endif

}  // namespace native
