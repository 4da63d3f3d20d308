// Sums of products of numbers of 8 or 4 bits with many rows of 16 bits, in int32. A block of a few outputs is unpacked once, a panel,
// whose lanes are outputs, and rows lie as it takes them: what either asks of memory comes in the order in which it lies.

#pragma once

#include "eight_sums.h"

namespace native {

#if WIDTH >= 8
constexpr int PANEL_VECTORS = 2, PANEL_OUTPUTS = PANEL_VECTORS * WIDTH;
constexpr int PANEL_ROWS = WIDTH == 16 ? 12 : 6;  // of a tile, at most: as many sums as the registers hold beside what is multiplied
constexpr int FEWEST_PANEL_ROWS = WIDTH == 16 ? 5 : 3;  // of a tile of five rows or more, which are parted evenly
constexpr int64_t MOST_PANEL_ROWS = 192;   // whose sums are kept from block to block: they stay in the first cache
constexpr int64_t MOST_PANEL_INPUTS = 256;
constexpr int64_t UNPACKED_INPUTS = 32;    // at once

// Vectors of a step. Of int4 there is one, each of whose numbers of 16 bits has two outputs in a byte.
constexpr int panel_vectors(Number number) { return number == Number::int4 ? 1 : PANEL_VECTORS; }

// Rows in tiles, and a tile's pairs of neighbouring inputs, steps, each of all its rows in turn. A block has `steps` of them, of which
// `before` are those of blocks before it.
struct PairRows {
  int64_t rows;
  int32_t* values;
  Split tiles;

  PairRows(int64_t rows, void* values) : rows(rows), values(static_cast<int32_t*>(values)), tiles(rows, PANEL_ROWS) {}

  const int32_t* tile(int64_t number, int64_t before, int64_t steps) const {
    return values + rows * before + tiles.start(number) * steps;
  }

  // Takes over `count` pairs of a row, those from `step` on of a block.
  void put(int64_t row, int64_t before, int64_t steps, int64_t step, const int16_t* pairs, int64_t count) const {
    const int64_t number = ((row + 1) * tiles.count - 1) / rows, together = tiles.size(number);
    int32_t* to = values + rows * before + tiles.start(number) * steps + step * together + row - tiles.start(number);
    for (int64_t i = 0; i < count; ++i) memcpy(to + i * together, pairs + 2 * i, sizeof(*to));
  }
};

// 32 inputs of 8 lines as steps, `apart` integers from each other.
template <Number NUMBER>
INLINE void unpack_lines(const uint8_t* from, int64_t stride, int32_t* to, int64_t apart) {
  __m256i twos[8], fours[8];
  const auto line = [&](int number) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + number * stride)); };
  UNROLLED for (int i = 0; i < 8; i += 2) {
    const __m256i a = line(i), b = line(i + 1);
    twos[i] = _mm256_unpacklo_epi16(a, b), twos[i + 1] = _mm256_unpackhi_epi16(a, b);
  }
  UNROLLED for (int i = 0; i < 8; i += 4) {
    UNROLLED for (int half = 0; half < 2; ++half) {
      fours[i + 2 * half] = _mm256_unpacklo_epi32(twos[i + half], twos[i + 2 + half]);
      fours[i + 2 * half + 1] = _mm256_unpackhi_epi32(twos[i + half], twos[i + 2 + half]);
    }
  }
  const auto store = [&](int64_t step, __m128i bytes) __attribute__((always_inline)) {
    const auto put = [&](int64_t at, __m256i all) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + step * apart + at), all); };
    if constexpr (NUMBER == Number::float4) {
      const __m128i values = float4_numbers(), four = _mm_set1_epi8(15);
      put(0, _mm256_cvtepu8_epi16(_mm_shuffle_epi8(values, _mm_and_si128(bytes, four))));
      put(WIDTH, _mm256_cvtepu8_epi16(_mm_shuffle_epi8(values, _mm_and_si128(_mm_srli_epi16(bytes, 4), four))));
    } else {
      put(0, NUMBER == Number::int4 ? _mm256_cvtepu8_epi16(bytes) : _mm256_cvtepi8_epi16(bytes));
    }
  };
  UNROLLED for (int i = 0; i < 4; ++i) {
    const __m256i first = _mm256_unpacklo_epi64(fours[i], fours[4 + i]), second = _mm256_unpackhi_epi64(fours[i], fours[4 + i]);
    store(2 * i, _mm256_castsi256_si128(first)), store(2 * i + 1, _mm256_castsi256_si128(second));
    store(8 + 2 * i, _mm256_extracti128_si256(first, 1)), store(9 + 2 * i, _mm256_extracti128_si256(second, 1));
  }
}

// A block of inputs of up to PANEL_OUTPUTS outputs, whose lines are `stride` apart; zeros where there are no more.
template <Number NUMBER>
INLINE void fill_panel(const uint8_t* from, int64_t stride, int64_t count, int64_t inputs, const uint8_t* following, Integers* panel) {
  constexpr int64_t EACH = is_paired(NUMBER) ? 2 : 1, LINES = PANEL_OUTPUTS / EACH, APART = panel_vectors(NUMBER) * WIDTH;
  int32_t* to = reinterpret_cast<int32_t*>(panel);
  for (int64_t done = 0; done < inputs; done += UNPACKED_INPUTS, to += UNPACKED_INPUTS / 2 * APART) {
    UNROLLED for (int64_t byte = 0; byte < LINES * UNPACKED_INPUTS; byte += LINE) {
      __builtin_prefetch(following + LINES * done + byte, 0, 2);
    }
    const uint8_t* some = from + done;
    int64_t apart = stride;
    uint8_t edge[LINES][UNPACKED_INPUTS];
    if (count < PANEL_OUTPUTS || done + UNPACKED_INPUTS > inputs) {  // what is behind may belong to nobody
      memset(edge, 0, sizeof(edge));
      for (int64_t line = 0; line < count / EACH; ++line) memcpy(edge[line], some + line * stride, smaller(UNPACKED_INPUTS, inputs - done));
      some = edge[0], apart = UNPACKED_INPUTS;
    }
    for (int64_t eight = 0; eight < LINES; eight += 8) unpack_lines<NUMBER>(some + eight * apart, apart, to + eight, APART);
  }
}

// Sums of a panel for R rows; of 4 bits first those of outputs with even numbers, then those with odd ones.
template <Number NUMBER, int R>
INLINE void multiply_panel(const Integers* panel, int64_t steps, const int32_t* x, Integers (&sums)[R][PANEL_VECTORS]) {
  for (int64_t step = 0; step < steps; ++step, panel += panel_vectors(NUMBER), x += R) {
    Shorts weights[PANEL_VECTORS];
    if constexpr (NUMBER == Number::int4) {
      weights[1] = (Shorts)panel[0], weights[0] = weights[1] & 15;
    } else {
      UNROLLED for (int v = 0; v < PANEL_VECTORS; ++v) weights[v] = (Shorts)panel[v];
    }
    UNROLLED for (int r = 0; r < R; ++r) {
      const Integers all = Integers{} + x[r];
      UNROLLED for (int v = 0; v < PANEL_VECTORS; ++v) sums[r][v] = plus_products(sums[r][v], weights[v], (Shorts)all);
    }
  }
  if constexpr (NUMBER == Number::int4) {
    UNROLLED for (int r = 0; r < R; ++r) sums[r][1] = (sums[r][1] - sums[r][0]) >> 4;
  }
}

// Of neighbours those with even numbers, then those with odd ones; and back.
INLINE void part_neighbours(Vector (&all)[PANEL_VECTORS]) {
#if WIDTH == 16
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512 first = (__m512)all[0], second = (__m512)all[1];
  all[0] = (Vector)_mm512_permutex2var_ps(first, even, second);
  all[1] = (Vector)_mm512_permutex2var_ps(first, _mm512_add_epi32(even, _mm512_set1_epi32(1)), second);
#else
  const __m256 first = (__m256)all[0], second = (__m256)all[1];
  const auto ordered = [](__m256 found) { return (Vector)_mm256_permute4x64_pd((__m256d)found, 0xd8); };
  all[0] = ordered(_mm256_shuffle_ps(first, second, 0x88)), all[1] = ordered(_mm256_shuffle_ps(first, second, 0xdd));
#endif
}

INLINE void join_neighbours(Vector (&all)[PANEL_VECTORS]) {
#if WIDTH == 16
  const __m512i lower = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512 first = (__m512)all[0], second = (__m512)all[1];
  all[0] = (Vector)_mm512_permutex2var_ps(first, lower, second);
  all[1] = (Vector)_mm512_permutex2var_ps(first, _mm512_add_epi32(lower, _mm512_set1_epi32(8)), second);
#else
  const __m256 low = _mm256_unpacklo_ps((__m256)all[0], (__m256)all[1]), high = _mm256_unpackhi_ps((__m256)all[0], (__m256)all[1]);
  all[0] = (Vector)_mm256_permute2f128_ps(low, high, 0x20), all[1] = (Vector)_mm256_permute2f128_ps(low, high, 0x31);
#endif
}

// In all lanes what it is; where zero is added to it, compilers add.
INLINE Vector all_lanes(float value) {
#if WIDTH == 16
  return (Vector)_mm512_set1_ps(value);
#else
  return (Vector)_mm256_set1_ps(value);
#endif
}

// Calls `f` with the rows of a tile, FEWEST_PANEL_ROWS to PANEL_ROWS, as a constant.
template <typename F>
INLINE void with_panel_rows(int64_t count, const F& f) {
  static_assert(3 <= FEWEST_PANEL_ROWS && PANEL_ROWS <= 12, "all are told here");
  switch (count) {
#define ROWS_OF(R) \
  case R: if constexpr (FEWEST_PANEL_ROWS <= R && R <= PANEL_ROWS) return f(std::integral_constant<int, R>()); break;
    ROWS_OF(3) ROWS_OF(4) ROWS_OF(5) ROWS_OF(6) ROWS_OF(7) ROWS_OF(8) ROWS_OF(9) ROWS_OF(10) ROWS_OF(11) ROWS_OF(12)
#undef ROWS_OF
  }
}
#endif

}  // namespace native
