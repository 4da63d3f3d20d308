// Sums of products of numbers of 4 bits with many rows of 8, and of 8 bits with rows of 16, in int32. A block of a few outputs is a panel,
// whose lanes are outputs, and rows lie as it takes them: what either asks of memory comes in the order in which it lies. A step is what an
// instruction multiplies of a row: four inputs of 8 bits or two of 16.

#pragma once

#include "eight_sums.h"

namespace native {

#if WIDTH >= 8
constexpr int PANEL_VECTORS = 2, PANEL_OUTPUTS = PANEL_VECTORS * WIDTH;
constexpr int PANEL_ROWS = WIDTH == 16 ? 12 : 6;  // of a tile, at most: as many sums as the registers hold beside what is multiplied
constexpr int FEWEST_PANEL_ROWS = WIDTH == 16 ? 5 : 3;  // of a tile of five rows or more, which are parted evenly
constexpr int64_t MOST_PANEL_ROWS = 192;   // whose sums are kept from block to block: they stay in the first cache
constexpr int64_t BYTES = 32;  // of a line that are turned at once

constexpr int64_t step_inputs(Number number) { return is_paired(number) ? 4 : 2; }

// Vectors of a step. Of 4 bits there is one, whose bytes have two outputs each.
constexpr int panel_vectors(Number number) { return is_paired(number) ? 1 : PANEL_VECTORS; }

// Rows in tiles, and a tile's steps, each of all its rows in turn, block by block.
struct PanelRows {
  int64_t rows;
  int32_t* values;
  Split tiles;

  PanelRows(int64_t rows, void* values) : rows(rows), values(static_cast<int32_t*>(values)), tiles(rows, PANEL_ROWS) {}

  // Where a row's steps are: in its tile, which begins behind so many rows, one of so many.
  struct Place {
    int64_t rows, before, together;
    int32_t* values;

    // Takes over a block, before which there are `done` steps.
    void put(int64_t done, int64_t steps, const void* from) const {
      int32_t* to = values + rows * done + before * steps;
      for (int64_t step = 0; step < steps; ++step) memcpy(to + step * together, static_cast<const int32_t*>(from) + step, sizeof(*to));
    }
  };

  Place place(int64_t row) const {
    const int64_t number = tiles.part_of(row), before = tiles.start(number);
    return {rows, before, tiles.size(number), values + row - before};
  }
};

// `sum` and the products of a step's neighbours: numbers of 4 bits with their offset, or int8 in 16 bits, and a row's integers.
template <Number NUMBER, typename Some>
INLINE Some plus_step(Some sum, Some numbers, Some row) {
  if constexpr (!is_paired(NUMBER)) {
    return plus_products(sum, (Shorts)numbers, (Shorts)row);
  } else {
#if INTEGER_QUADS
    // GCC 12 moves every sum to another register and back around its own form of this instruction
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(numbers), "v"(row));
    return sum;
#elif WIDTH == 16
    if constexpr (sizeof(Some) == 64) {
      const __m512i pairs = _mm512_maddubs_epi16((__m512i)numbers, (__m512i)row);
      return (Some)_mm512_add_epi32((__m512i)sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    }
#endif
    if constexpr (sizeof(Some) == 32) {  // numbers are so small that pairs do not saturate
      const __m256i pairs = _mm256_maddubs_epi16((__m256i)numbers, (__m256i)row);
      return (Some)_mm256_add_epi32((__m256i)sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
  }
}

// What 8 lines have of the inputs [4 i, 4 i + 4), four bytes in each lane, from 32 inputs of each.
INLINE void turn_lines(const __m256i (&lines)[8], __m256i (&to)[8]) {
  UNROLLED for (int half = 0; half < 2; ++half) {
    __m256i twos[4], fours[4];
    UNROLLED for (int pair = 0; pair < 2; ++pair) {
      UNROLLED for (int i = 0; i < 2; ++i) {
        const __m256i a = lines[4 * i + 2 * pair], b = lines[4 * i + 2 * pair + 1];
        twos[2 * i + pair] = half == 0 ? _mm256_unpacklo_epi32(a, b) : _mm256_unpackhi_epi32(a, b);
      }
    }
    UNROLLED for (int i = 0; i < 2; ++i) {
      fours[2 * i] = _mm256_unpacklo_epi64(twos[2 * i], twos[2 * i + 1]), fours[2 * i + 1] = _mm256_unpackhi_epi64(twos[2 * i], twos[2 * i + 1]);
    }
    UNROLLED for (int i = 0; i < 2; ++i) {
      to[2 * half + i] = _mm256_permute2x128_si256(fours[i], fours[2 + i], 0x20);
      to[4 + 2 * half + i] = _mm256_permute2x128_si256(fours[i], fours[2 + i], 0x31);
    }
  }
}

// A block of inputs of up to PANEL_OUTPUTS outputs, whose lines are `stride` apart; zeros where there are no more.
template <Number NUMBER>
INLINE void fill_panel(const uint8_t* from, int64_t stride, int64_t count, int64_t inputs, const uint8_t* following, Integers* panel) {
  constexpr int64_t EACH = is_paired(NUMBER) ? 2 : 1, LINES = PANEL_OUTPUTS / EACH, APART = LINES * sizeof(int32_t);
  uint8_t* to = reinterpret_cast<uint8_t*>(panel);
  for (int64_t done = 0; done < inputs; done += BYTES, to += BYTES / step_inputs(NUMBER) * APART) {
    UNROLLED for (int64_t byte = 0; byte < LINES * BYTES; byte += LINE) __builtin_prefetch(following + LINES * done + byte, 0, 2);
    const uint8_t* some = from + done;
    int64_t apart = stride;
    uint8_t edge[LINES][BYTES];
    if (count < PANEL_OUTPUTS || done + BYTES > inputs) {  // what is behind may belong to nobody
      memset(edge, 0, sizeof(edge));
      for (int64_t line = 0; line < count / EACH; ++line) memcpy(edge[line], some + line * stride, smaller(BYTES, inputs - done));
      some = edge[0], apart = BYTES;
    }
    for (int64_t eight = 0; eight < LINES; eight += 8) {
      __m256i lines[8], steps[8];
      UNROLLED for (int line = 0; line < 8; ++line) {
        lines[line] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(some + (eight + line) * apart));
      }
      turn_lines(lines, steps);
      const auto put = [&](int64_t step, __m256i all) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + step * APART + 4 * eight), all);
      };
      UNROLLED for (int quad = 0; quad < 8; ++quad) {
        if constexpr (is_paired(NUMBER)) {
          put(quad, steps[quad]);
        } else {  // each byte is the upper one of 16 bits, which are shifted down
          const __m256i first = _mm256_set1_epi64x(0x05'80'04'80'01'80'00'80), both = _mm256_add_epi8(first, _mm256_set1_epi16(0x0200));
          const __m256i eights = _mm256_setr_epi64x(0, 0x0800'0800'0800'0800, 0, 0x0800'0800'0800'0800);
          put(2 * quad, _mm256_srai_epi16(_mm256_shuffle_epi8(steps[quad], _mm256_add_epi8(first, eights)), 8));
          put(2 * quad + 1, _mm256_srai_epi16(_mm256_shuffle_epi8(steps[quad], _mm256_add_epi8(both, eights)), 8));
        }
      }
    }
  }
}

// What each of the 16 numbers of float4 is, plus the offset.
INLINE __m128i float4_numbers() { return _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0); }

// What bytes hold of each line's first output and of its second, plus the offset. Of int4 the second ones have 16 times themselves and the
// first where products do not saturate: `apart` takes their sums apart, and leaves them so many times as large.
template <Number NUMBER, typename Some>
struct Pairs {
  static constexpr bool JOINED = times_of_second(NUMBER) > 1;
  typedef uint8_t Bytes __attribute__((vector_size(sizeof(Some))));
  typedef uint16_t Words __attribute__((vector_size(sizeof(Some))));
  Some first, second;

  INLINE_MEMBER explicit Pairs(Some bytes)
      : first(number((Some)((Bytes)bytes & 15))),
        second(JOINED ? bytes : number((Some)((Bytes)((Words)bytes >> 4) & 15))) {}

  INLINE_MEMBER static Some number(Some bits) {
    if constexpr (NUMBER == Number::int4) return bits;
#if WIDTH == 16
    if constexpr (sizeof(Some) == 64) return (Some)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(float4_numbers()), (__m512i)bits);
#endif
    if constexpr (sizeof(Some) == 32) return (Some)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(float4_numbers()), (__m256i)bits);
  }

  template <typename Sums>
  INLINE_MEMBER static Sums apart(Sums first, Sums second) {
    return JOINED ? second - first : second;
  }

  // The second ones' sums.
  template <typename Sums>
  INLINE_MEMBER static Sums parted(Sums first, Sums second) {
    return JOINED ? apart(first, second) >> 4 : second;
  }
};

// Adds a panel for R rows to sums; of 4 bits first those of outputs with even numbers, then those with odd ones, `times_of_second`. `vector(step,
// v)` has its bytes.
template <Number NUMBER, int R, typename Vectors>
INLINE void multiply_panel(int64_t steps, const int32_t* x, Integers (&sums)[R][PANEL_VECTORS], const Vectors& vector) {
  for (int64_t step = 0; step < steps; ++step, x += R) {
    Integers numbers[PANEL_VECTORS];
    if constexpr (is_paired(NUMBER)) {
      const Pairs<NUMBER, Integers> pairs(vector(step, 0));
      numbers[0] = pairs.first, numbers[1] = pairs.second;
    } else {
      UNROLLED for (int v = 0; v < PANEL_VECTORS; ++v) numbers[v] = vector(step, v);
    }
    UNROLLED for (int r = 0; r < R; ++r) {
      const Integers all = Integers{} + x[r];
      UNROLLED for (int v = 0; v < PANEL_VECTORS; ++v) sums[r][v] = plus_step<NUMBER>(sums[r][v], numbers[v], all);
    }
  }
  if constexpr (is_paired(NUMBER)) {
    UNROLLED for (int r = 0; r < R; ++r) sums[r][1] = Pairs<NUMBER, Integers>::apart(sums[r][0], sums[r][1]);
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
