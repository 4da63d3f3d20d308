// A few rows times lines of lanes: what products with packed matrices and attention within rows are made of.
//
// A lane is an output. Its sum is that of one line after the other, from where it begins to where it ends: neither the rows and lanes
// beside it, nor the blocks in which lines are multiplied, have a say in it.

#pragma once

#include "float_tile.h"

namespace native {

// Of a tile: as many sums as the registers hold beside a line and a number of a row.
#if WIDTH == 8
constexpr int MOST_VECTORS = 2, TILE_ROWS = 6;
#else
constexpr int MOST_VECTORS = 4, TILE_ROWS = ROWS;
#endif

// Of bfloat16 in twos: the rows are of bfloat16 where the machine multiplies these, else of float32 with as few digits.
#if BFLOAT16_PAIRS
typedef uint16_t PairValue;
#else
typedef float PairValue;
#endif

// A number of each row times a line of V vectors.
template <int R, int V>
INLINE void multiply_line(const Vector (&line)[V], const uint8_t* x, int64_t x_stride, Vector (&sums)[R][V]) {
  UNROLLED for (int r = 0; r < R; ++r) {
    float value;
    memcpy(&value, x + r * x_stride, sizeof(value));
    UNROLLED for (int v = 0; v < V; ++v) sums[r][v] = line[v] * value + sums[r][v];
  }
}

// `steps` lines of V vectors, `stride` floats apart, times R rows, `x_stride` bytes apart, onto `sums`; a line's vectors are `apart` floats
// apart. With `PAIRS` a lane of a line is two bfloat16, and a step has two numbers of a row. Where it `ASKS`, as many lines of the caches are
// asked for meanwhile, from `ahead` on.
template <bool PAIRS, bool ASKS = false, int R, int V>
INLINE void multiply_lines(const float* lines, int64_t stride, int64_t apart, int64_t steps, const uint8_t* x, int64_t x_stride,
                           Vector (&sums)[R][V], const float* ahead = nullptr) {
  for (int64_t step = 0; step < steps; ++step, lines += stride) {
    if constexpr (ASKS) __builtin_prefetch(ahead + LINE / sizeof(float) * step, 0, 2);
    Vector line[V];
    const auto words = [&](int v) -> const Words& { return *reinterpret_cast<const Words*>(lines + apart * v); };
    if constexpr (!PAIRS) {
      UNROLLED for (int v = 0; v < V; ++v) line[v] = (Vector)words(v);
      multiply_line(line, x, x_stride, sums);
      x += sizeof(float);
    } else {
#if BFLOAT16_PAIRS
      UNROLLED for (int v = 0; v < V; ++v) line[v] = (Vector)words(v);
      UNROLLED for (int r = 0; r < R; ++r) {
        float value;
        memcpy(&value, x + r * x_stride, sizeof(value));
        const __m512 all = _mm512_set1_ps(value);
        UNROLLED for (int v = 0; v < V; ++v) asm("vdpbf16ps %2, %1, %0" : "+v"(sums[r][v]) : "v"(line[v]), "v"(all));
      }
#else
      UNROLLED for (int v = 0; v < V; ++v) line[v] = (Vector)(words(v) << 16);
      multiply_line(line, x, x_stride, sums);
      UNROLLED for (int v = 0; v < V; ++v) line[v] = (Vector)(words(v) & 0xffff0000u);
      multiply_line(line, x + sizeof(float), x_stride, sums);
#endif
      x += 2 * sizeof(PairValue);
    }
  }
}

// Calls `f` with `count` rows, one to `TILE_ROWS`, as a constant.
template <typename F>
INLINE void with_rows(int64_t count, const F& f) {
  switch (count) {
#define ROWS_OF(R) \
  case R: if constexpr (R <= TILE_ROWS) return f(std::integral_constant<int, R>()); break;
    ROWS_OF(1) ROWS_OF(2) ROWS_OF(3) ROWS_OF(4) ROWS_OF(5) ROWS_OF(6)
#undef ROWS_OF
  }
}

// The error function to two units in the last place: a rational function, as XLA has it.
INLINE Vector error_function(Vector x) {
  const Vector most = Vector{} + 3.832506856900711f;
  x = x > most ? most : x < -most ? -most : x;
  const Vector square = x * x;
  Vector above = square * 0.00022905065861350646f + 0.0034082910107109506f;
  above = above * square + 0.050955695062380861f;
  above = above * square + 0.18520832239976145f;
  above = above * square + 1.128379143519084f;
  Vector below = square * -1.1791602954361697e-7f + 0.000023547966471313185f;
  below = below * square + 0.0010179625278914885f;
  below = below * square + 0.014070470171167667f;
  below = below * square + 0.11098505178285362f;
  below = below * square + 0.49746925110067538f;
  below = below * square + 1.0f;
  return x * above / below;
}

INLINE Vector gelu(Vector x) { return x * 0.5f * (1.0f + error_function(x * 0.70710678f)); }

}  // namespace native
