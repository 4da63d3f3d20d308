// Products of rows with matrices that were packed as they were loaded, and what becomes of their sums.

#pragma once

#include <vector>

#include "lane_tile.h"
#include "threads.h"

namespace native {

constexpr int64_t PANEL = 16;                           // outputs that lie together
constexpr int64_t COLUMNS_AT_ONCE = MOST_VECTORS * WIDTH;  // outputs of a tile: one panel, or several
constexpr int64_t PANELS_AT_ONCE = COLUMNS_AT_ONCE / PANEL;
constexpr int64_t PACKED_STEPS = 512;      // of a block of a tile's panels, at most: with a few rows it stays in the second cache
constexpr int64_t MOST_PACKED_ROWS = 192;  // of a task
static_assert(PANEL * sizeof(float) == LINE && COLUMNS_AT_ONCE % PANEL == 0 && PANEL % WIDTH == 0);

enum class Activation { none, gelu };

// x [rows, inputs] of float32. `pairs`: the matrices are of bfloat16, and `rounded` is room for as many numbers of that kind.
struct PackedProduct {
  bool pairs;
  int64_t rows, inputs;
  const float* x;
  PairValue* rounded;
  Activation activation;

  int64_t steps() const { return pairs ? inputs / 2 : inputs; }
  int64_t step_bytes() const { return pairs ? 2 * sizeof(PairValue) : sizeof(float); }
  const uint8_t* row(int64_t number) const {
    return pairs ? reinterpret_cast<const uint8_t*>(rounded + number * inputs) : reinterpret_cast<const uint8_t*>(x + number * inputs);
  }
};

// A matrix of panels [outputs / PANEL, inputs, PANEL] of float32, or of bfloat16 [outputs / PANEL, inputs / 2, PANEL, 2], whose outputs are
// whole tiles; `bias` [outputs] of float32 or null; out [rows, outputs].
struct PackedMatrix {
  int64_t outputs;
  const float *panels, *bias;
  float* out;

  // Of a panel's first output, from a step on.
  const float* lines(const PackedProduct& product, int64_t output, int64_t step) const {
    return panels + output * product.steps() + step * PANEL;
  }
};

// To nearest, ties to even; what is not a number stays none.
INLINE uint16_t rounded(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

INLINE void round_row(const float* from, PairValue* to, int64_t count) {
#if BFLOAT16_PAIRS
  int64_t at = 0;
  for (; at + WIDTH <= count; at += WIDTH) {
    const __m256i narrow = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(from + at));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at), narrow);
  }
  for (; at < count; ++at) to[at] = rounded(from[at]);
#else
  for (int64_t at = 0; at < count; ++at) {
    const uint32_t bits = uint32_t(rounded(from[at])) << 16;
    memcpy(to + at, &bits, sizeof(bits));
  }
#endif
}

// A tile of a block of its panels, the outputs from `output` on: sums go on in `partial` [R, COLUMNS_AT_ONCE] from block to block, and to `out`
// behind the last one. `ahead` is what is asked for meanwhile.
template <bool PAIRS, bool ASKS, int R>
NOT_INLINE void packed_tile(const PackedProduct& product, const PackedMatrix& matrix, int64_t output, int64_t begin, int64_t end,
                            int64_t row, float* partial, const float* ahead) {
  Vector sums[R][MOST_VECTORS] = {};
  const auto kept = [&](int r, int v) -> Vector& { return *reinterpret_cast<Vector*>(partial + r * COLUMNS_AT_ONCE + WIDTH * v); };
  if (begin > 0) {
    UNROLLED for (int r = 0; r < R; ++r) {
      UNROLLED for (int v = 0; v < MOST_VECTORS; ++v) sums[r][v] = kept(r, v);
    }
  }
  const uint8_t* x = product.row(row) + begin * product.step_bytes();
  const int64_t apart = PANELS_AT_ONCE == 1 ? WIDTH : PANEL * product.steps();
  multiply_lines<PAIRS, ASKS>(matrix.lines(product, output, begin), PANEL, apart, end - begin, x, product.row(1) - product.row(0), sums, ahead);
  if (end < product.steps()) {
    UNROLLED for (int r = 0; r < R; ++r) {
      UNROLLED for (int v = 0; v < MOST_VECTORS; ++v) kept(r, v) = sums[r][v];
    }
    return;
  }
  float* out = matrix.out + row * matrix.outputs + output;
  UNROLLED for (int v = 0; v < MOST_VECTORS; ++v) {
    const Vector added = matrix.bias == nullptr ? Vector{} : *reinterpret_cast<const Vector*>(matrix.bias + output + WIDTH * v);
    UNROLLED for (int r = 0; r < R; ++r) *reinterpret_cast<Vector*>(out + r * matrix.outputs + WIDTH * v) = sums[r][v] + added;
  }
  if (product.activation == Activation::none) return;
  for (int r = 0; r < R; ++r) {  // of what was written: compilers keep sums in memory that a loop counts through
    for (int v = 0; v < MOST_VECTORS; ++v) {
      Vector& found = *reinterpret_cast<Vector*>(out + r * matrix.outputs + WIDTH * v);
      found = gelu(found);
    }
  }
}

// The outputs [first, last) of a matrix, in tiles, for some rows.
static void multiply_panels(const PackedProduct& product, const PackedMatrix& matrix, int64_t first, int64_t last, int64_t row,
                            int64_t count) {
  alignas(LINE) float partial[MOST_PACKED_ROWS * COLUMNS_AT_ONCE];
  const Split tiles(count, TILE_ROWS), blocks(product.steps(), PACKED_STEPS);
  for (int64_t output = first; output < last; output += COLUMNS_AT_ONCE) {
    for (int64_t block = 0; block < blocks.count; ++block) {
      const int64_t begin = blocks.start(block), end = blocks.start(block + 1);
      const float* next = end < product.steps() ? matrix.lines(product, output, end) : matrix.lines(product, output + COLUMNS_AT_ONCE, 0);
      for (int64_t part = 0; part < tiles.count; ++part) {
        with_rows(tiles.size(part), [&](auto rows) {
          // The first tiles of a block ask for the next one, each for that of a panel.
          constexpr int R = rows.value;
          const bool asks = part < PANELS_AT_ONCE;
          const auto tile = asks ? (product.pairs ? packed_tile<true, true, R> : packed_tile<false, true, R>)
                                 : (product.pairs ? packed_tile<true, false, R> : packed_tile<false, false, R>);
          const float* ahead = next + part * PANEL * product.steps();
          tile(product, matrix, output, begin, end, row + tiles.start(part), partial + tiles.start(part) * COLUMNS_AT_ONCE, ahead);
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

  int64_t columns = 0;
  for (const PackedMatrix& matrix : matrices) columns += matrix.outputs / COLUMNS_AT_ONCE;
  const Split groups(product.rows, MOST_PACKED_ROWS);
  const int64_t wanted = (8 * threads + groups.count - 1) / groups.count;  // strips of each, so that all threads end together
  const Split strips(columns, larger(1, columns / wanted));
  in_parallel(groups.count * strips.count, threads, schedule, [&](int64_t number) {
    Rounding as_xla;
    const int64_t group = number / strips.count, strip = number % strips.count;
    int64_t before = 0;
    for (const PackedMatrix& matrix : matrices) {
      const int64_t own = matrix.outputs / COLUMNS_AT_ONCE;
      const int64_t first = larger(0, strips.start(strip) - before), last = smaller(own, strips.start(strip + 1) - before);
      if (first < last) {
        multiply_panels(product, matrix, first * COLUMNS_AT_ONCE, last * COLUMNS_AT_ONCE, groups.start(group), groups.size(group));
      }
      before += own;
    }
  });
}

}  // namespace native
