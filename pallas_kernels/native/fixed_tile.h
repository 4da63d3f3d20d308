// Products of up to four rows: eight results at a time, whose numbers never leave the registers.

#pragma once

#include "fixed.h"

namespace native {

// Those of R rows, each for as many lanes.
template <int R>
INLINE Eight of_rows(const void* from) {
  int32_t bits[R];
  memcpy(bits, from, sizeof(bits));
#if WIDTH >= 8
  if constexpr (R == 1) return Eight{} + bits[0];
  if constexpr (R == 2) return (Eight)_mm256_setr_m128i(_mm_set1_epi32(bits[0]), _mm_set1_epi32(bits[1]));
  const __m128i all = _mm_loadu_si128(static_cast<const __m128i*>(from));
  return (Eight)_mm256_permutevar8x32_epi32(_mm256_castsi128_si256(all), _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
#else
  Eight found;
  for (int i = 0; i < 8; ++i) found[i] = bits[i * R / 8];
  return found;
#endif
}

// OUTPUTS scales, or zeros, again for each row.
template <int OUTPUTS, bool ZEROS>
INLINE EightFloats repeated(const void* from, Factor factor) {
#if WIDTH >= 8
  const auto repeat = [&](auto number) {  // in registers: what was written in parts is read late
    memcpy(&number, from, sizeof(number));
    if constexpr (sizeof(number) == 2) return _mm_set1_epi16(number);
    if constexpr (sizeof(number) == 4) return _mm_set1_epi32(number);
    if constexpr (sizeof(number) == 8) return _mm_set1_epi64x(number);
  };
  if (factor == Factor::float32) {
    if constexpr (OUTPUTS == 8) return *static_cast<const EightFloats*>(from);
    if constexpr (OUTPUTS == 4) return (EightFloats)_mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(from)));
    return (EightFloats)_mm256_broadcastsi128_si256(repeat(int64_t()));
  }
  if (factor == Factor::bytes) {
    __m128i bytes;
    if constexpr (OUTPUTS == 8) bytes = repeat(int64_t());
    if constexpr (OUTPUTS == 4) bytes = repeat(int32_t());
    if constexpr (OUTPUTS == 2) bytes = repeat(int16_t());
    const __m256 floats = _mm256_cvtepi32_ps(ZEROS ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
    return (EightFloats)floats * (ZEROS ? ZERO_STEP : 1.0f);
  }
  __m128i halves;
  if constexpr (OUTPUTS == 8) halves = _mm_loadu_si128(static_cast<const __m128i*>(from));
  if constexpr (OUTPUTS == 4) halves = repeat(int64_t());
  if constexpr (OUTPUTS == 2) halves = repeat(int32_t());
  return (EightFloats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16);
#else
  Vector read[8 / WIDTH];
  float some[8];
  read_factors<ZEROS>(from, factor, 0, OUTPUTS, read);
  memcpy(some, read, sizeof(some));
  EightFloats found;
  for (int i = 0; i < 8; ++i) found[i] = some[i % OUTPUTS];
  return found;
#endif
}

// Scales or zeros of OUTPUTS outputs, of which there are `count`, for each row.
template <int OUTPUTS, bool ZEROS>
INLINE EightFloats of_outputs(const void* array, Factor factor, int64_t place, int64_t count) {
  const int64_t size = factor_bytes(factor);
  const uint8_t* from = static_cast<const uint8_t*>(array) + place * size;
  if (count == OUTPUTS) return repeated<OUTPUTS, ZEROS>(from, factor);
  uint8_t copy[OUTPUTS * sizeof(float)] = {};
  return repeated<OUTPUTS, ZEROS>(memcpy(copy, from, count * size), factor);
}

// R rows from `row` on, and as many outputs from `output` on as make eight results, of which there are `count`.
template <Number NUMBER, int R>
NOT_INLINE void tile_of_fixed(const Product& product, const Scaled& scaled, const Blocks& blocks, int64_t row, int64_t output,
                              int64_t count) {
  typedef EightOf<NUMBER, R> Of;
  const FixedRows rows(product, scaled, blocks);
  const uint8_t* matrix = static_cast<const uint8_t*>(product.weight) + output / Of::EACH * product.inputs;
  // The first rows read the matrix from memory, which delivers in order: they ask for what is behind in the order in which it lies.
  const uint8_t* following = matrix + (row == 0 ? larger(Of::LINES * product.inputs, BEHIND) : 0);
  Of of;
  UNROLLED for (int64_t line = 0; line < Of::LINES; ++line) {
    of.lines[line] = scaled.line(product, output / Of::EACH + smaller(line, (count - 1) / Of::EACH));
  }
  of.x_stride = rows.stride, of.following = following, of.packed = scaled.packed;
  EightFloats total = {};
  blocks.for_each([&](int64_t block, int64_t group, int64_t start, int64_t inputs) __attribute__((always_inline)) {
    of.x = reinterpret_cast<const RowOf<NUMBER>*>(rows.block(blocks, row, block)) - start;
    const int64_t place = group * product.outputs + output, of_row = block * rows.together + row;
    EightFloats zeros = {}, scales = EightFloats{} + 1.0f;
    if (scaled.zeros != nullptr) zeros = of_outputs<Of::OUTPUTS, true>(scaled.zeros, scaled.factor, place, count);
    if (scaled.groups != 0) scales = of_outputs<Of::OUTPUTS, false>(scaled.scales, scaled.factor, place, count);
    total = with_block<NUMBER>(total, eight_sums(of, start, start + inputs), of_rows<R>(rows.sums + of_row),
                               (EightFloats)of_rows<R>(rows.scales + of_row), scaled.zeros != nullptr, zeros, scales);
  });
  float results[8];
  memcpy(results, &total, sizeof(results));
  for (int r = 0; r < R; ++r) {
    float* out = product.out + (row + r) * product.outputs + output;
    memcpy(out, results + r * Of::OUTPUTS, (count == Of::OUTPUTS ? Of::OUTPUTS : count) * sizeof(float));
  }
}

template <Number NUMBER, int R>
static void tiles_of_fixed(const Product& product, const Scaled& scaled, const Blocks& blocks, int64_t row, int64_t first,
                           int64_t last) {
  constexpr int64_t OUTPUTS = EightOf<NUMBER, R>::OUTPUTS;
  for (int64_t output = first; output < last; output += OUTPUTS) {
    tile_of_fixed<NUMBER, R>(product, scaled, blocks, row, output, smaller(OUTPUTS, last - output));
  }
}

template <Number NUMBER>
static void outputs_by_tiles(const Product& product, const Scaled& scaled, const Blocks& blocks, int64_t first, int64_t last) {
  int64_t row = 0;
  for (; row + 4 <= product.rows; row += 4) tiles_of_fixed<NUMBER, 4>(product, scaled, blocks, row, first, last);
  for (; row + 2 <= product.rows; row += 2) tiles_of_fixed<NUMBER, 2>(product, scaled, blocks, row, first, last);
  if (row < product.rows) tiles_of_fixed<NUMBER, 1>(product, scaled, blocks, row, first, last);
}

}  // namespace native
