// Products of rows with matrices that were packed as they were loaded, and what becomes of their sums.

#pragma once

#include <vector>

#include "lane_tile.h"
#include "threads.h"

namespace native {

constexpr int64_t PANEL = 64;              // outputs that lie together
constexpr int64_t PACKED_STEPS = 512;      // of a block of a panel, at most: with a few rows it stays in the second cache
constexpr int64_t MOST_PACKED_ROWS = 192;  // of a task

constexpr int64_t ASKING = PANEL * sizeof(float) / LINE;  // tiles that ask for what follows

enum class Activation { none, gelu };

// A matrix of panels [outputs / PANEL, inputs, PANEL] of float32, or of bfloat16 [outputs / PANEL, inputs / 2, PANEL, 2]; `bias`
// [outputs] of float32 or null; out [rows, outputs].
struct PackedMatrix {
  int64_t outputs;
  const float *panels, *bias;
  float* out;
};

// x [rows, inputs] of float32. `pairs`: the matrices are of bfloat16, and `rounded` is room for as many of those.
struct PackedProduct {
  bool pairs;
  int64_t rows, inputs;
  const float* x;
  uint16_t* rounded;
  Activation activation;

  int64_t steps() const { return pairs ? inputs / 2 : inputs; }
  const uint8_t* row(int64_t number) const {
    return pairs ? reinterpret_cast<const uint8_t*>(rounded + number * inputs) : reinterpret_cast<const uint8_t*>(x + number * inputs);
  }
};

// To nearest, ties to even; what is not a number stays none.
INLINE uint16_t rounded(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

INLINE void round_row(const float* from, uint16_t* to, int64_t count) {
  int64_t at = 0;
#if BFLOAT16_PAIRS
  for (; at + WIDTH <= count; at += WIDTH) {
    const __m256i narrow = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(from + at));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at), narrow);
  }
#endif
  for (; at < count; ++at) to[at] = rounded(from[at]);
}

// A tile of a block of a panel: sums go on in `partial` [R, PANEL] from block to block, and to `out` behind the last one. `ahead` is what
// is asked for meanwhile.
template <bool PAIRS, bool ASKS, int R>
NOT_INLINE void packed_tile(const PackedProduct& product, const PackedMatrix& matrix, int64_t output, int64_t begin, int64_t end,
                            int64_t row, float* partial, const float* ahead) {
  for (int64_t lane = 0; lane < PANEL; lane += MOST_VECTORS * WIDTH) {
    Vector sums[R][MOST_VECTORS] = {};
    const auto kept = [&](int r, int v) -> Vector& { return *reinterpret_cast<Vector*>(partial + r * PANEL + lane + WIDTH * v); };
    if (begin > 0) {
      UNROLLED for (int r = 0; r < R; ++r) {
        UNROLLED for (int v = 0; v < MOST_VECTORS; ++v) sums[r][v] = kept(r, v);
      }
    }
    const float* lines = matrix.panels + output * product.steps() + begin * PANEL + lane;
    const uint8_t* x = product.row(row) + begin * sizeof(float);
    multiply_lines<PAIRS, ASKS>(lines, PANEL, end - begin, x, product.row(1) - product.row(0), sums, ahead);
    if (end < product.steps()) {
      UNROLLED for (int r = 0; r < R; ++r) {
        UNROLLED for (int v = 0; v < MOST_VECTORS; ++v) kept(r, v) = sums[r][v];
      }
      continue;
    }
    float* out = matrix.out + row * matrix.outputs + output + lane;
    UNROLLED for (int v = 0; v < MOST_VECTORS; ++v) {
      const float* bias = matrix.bias + output + lane + WIDTH * v;
      const Vector added = matrix.bias == nullptr ? Vector{} : *reinterpret_cast<const Vector*>(bias);
      UNROLLED for (int r = 0; r < R; ++r) *reinterpret_cast<Vector*>(out + r * matrix.outputs + WIDTH * v) = sums[r][v] + added;
    }
    if (product.activation == Activation::none) continue;
    for (int r = 0; r < R; ++r) {  // of what was written: compilers keep sums in memory that a loop counts through
      for (int v = 0; v < MOST_VECTORS; ++v) {
        Vector& found = *reinterpret_cast<Vector*>(out + r * matrix.outputs + WIDTH * v);
        found = gelu(found);
      }
    }
  }
}

// Panels [first, last) of a matrix for some rows.
static void multiply_panels(const PackedProduct& product, const PackedMatrix& matrix, int64_t first, int64_t last, int64_t row,
                            int64_t count) {
  alignas(LINE) float partial[MOST_PACKED_ROWS * PANEL];
  const Split tiles(count, ROWS), blocks(product.steps(), PACKED_STEPS);
  for (int64_t panel = first; panel < last; ++panel) {
    for (int64_t block = 0; block < blocks.count; ++block) {
      for (int64_t part = 0; part < tiles.count; ++part) {
        with_rows(tiles.size(part), [&](auto rows) {
          // The first tiles of a block ask for the next one, each for a part: as many lines of the caches as they have steps.
          constexpr int R = rows.value;
          const bool asks = part < ASKING;
          const auto tile = asks ? (product.pairs ? packed_tile<true, true, R> : packed_tile<false, true, R>)
                                 : (product.pairs ? packed_tile<true, false, R> : packed_tile<false, false, R>);
          const int64_t begin = blocks.start(block), end = blocks.start(block + 1), size = end - begin;
          const float* ahead = matrix.panels + panel * PANEL * product.steps() + end * PANEL + part * size * (PANEL / ASKING);
          tile(product, matrix, panel * PANEL, begin, end, row + tiles.start(part), partial + tiles.start(part) * PANEL, ahead);
        });
      }
    }
  }
}

// `matrices` are all multiplied by the same rows.
template <typename Schedule>
void multiply_packed(const PackedProduct& product, const std::vector<PackedMatrix>& matrices, int64_t threads, const Schedule& schedule) {
  const Split rounding(product.pairs ? product.rows : 0, larger(1, (64 << 10) / product.inputs));
  in_parallel(rounding.count, threads, schedule, [&](int64_t number) {
    Rounding as_xla;
    const int64_t begin = rounding.start(number) * product.inputs, count = rounding.size(number) * product.inputs;
    round_row(product.x + begin, product.rounded + begin, count);
  });

  int64_t panels = 0;
  for (const PackedMatrix& matrix : matrices) panels += matrix.outputs / PANEL;
  const Split groups(product.rows, MOST_PACKED_ROWS);
  const int64_t wanted = (8 * threads + groups.count - 1) / groups.count;  // strips of each, so that all threads end together
  const Split strips(panels, larger(1, panels / wanted));
  in_parallel(groups.count * strips.count, threads, schedule, [&](int64_t number) {
    Rounding as_xla;
    const int64_t group = number / strips.count, strip = number % strips.count;
    int64_t before = 0;
    for (const PackedMatrix& matrix : matrices) {
      const int64_t own = matrix.outputs / PANEL;
      const int64_t first = larger(0, strips.start(strip) - before), last = smaller(own, strips.start(strip + 1) - before);
      if (first < last) multiply_panels(product, matrix, first, last, groups.start(group), groups.size(group));
      before += own;
    }
  });
}

}  // namespace native
