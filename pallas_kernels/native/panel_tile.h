// Rows times a panel, and what becomes of the sums.

#pragma once

#include "panel.h"

namespace native {

// Sums are added to those of earlier blocks in `out`: as they are, scaled, or of integers, which are scaled when all have come.
enum class Ending { plain, scaled, integers };

struct Block {
  float* out;  // of the first row; so is what else belongs to rows
  int64_t stride, columns;
  bool begin, end;
  Vector scales[VECTORS], zeros[VECTORS];
  const float* row_sums;  // `row_sum_stride` apart, of a group of scales; null: no zeros
  int64_t row_sum_stride;
  const float* row_scales;
  const int32_t* excess;  // of a row's sums of integers
};

template <Ending ENDING>
INLINE Vector ended(Vector sum, Vector before, const Block& block, int64_t row, int v) {
  if constexpr (ENDING == Ending::plain) return sum + before;
  if constexpr (ENDING == Ending::scaled) {
    if (block.row_sums != nullptr) sum -= block.zeros[v] * block.row_sums[row * block.row_sum_stride];
    return sum * block.scales[v] + before;
  }
  // in unsigned numbers, whose overflow is defined: what is taken off brings the sum back
  Words all = (Words)before + (INTEGER_QUADS ? (Words)sum : (Words)__builtin_convertvector(sum, Integers));
  if (!block.end) return (Vector)all;
  if (block.excess != nullptr) all -= static_cast<uint32_t>(block.excess[row]);
  return __builtin_convertvector((Integers)all, Vector) * block.row_scales[row] * block.scales[v];
}

template <Ending ENDING, int R>
INLINE void add(const Vector (&sums)[R][VECTORS], const Block& block, int64_t row) {
  UNROLLED for (int r = 0; r < R; ++r) {
    float* out = block.out + (row + r) * block.stride;
    if (block.columns == COLUMNS) {
      UNROLLED for (int v = 0; v < VECTORS; ++v) {
        Vector& to = *reinterpret_cast<Vector*>(out + WIDTH * v);
        to = ended<ENDING>(sums[r][v], block.begin ? Vector{} : to, block, row + r, v);
      }
      continue;
    }
    Vector all[VECTORS] = {};
    if (!block.begin) memcpy(all, out, block.columns * sizeof(float));
    UNROLLED for (int v = 0; v < VECTORS; ++v) all[v] = ended<ENDING>(sums[r][v], all[v], block, row + r, v);
    memcpy(out, all, block.columns * sizeof(float));
  }
}

// R rows, `stride` bytes apart, with a panel.
template <Way WAY, Ending ENDING, int R>
NOT_INLINE void tile_of_panel(const Vector* panel, int64_t steps, const uint8_t* x, int64_t stride, const Block& block,
                              int64_t row) {
  Vector sums[R][VECTORS] = {};
  for (int64_t step = 0; step < steps; ++step, panel += VECTORS, x += sizeof(float)) {
    Vector weights[VECTORS];
    UNROLLED for (int v = 0; v < VECTORS; ++v) weights[v] = panel[v];
    UNROLLED for (int r = 0; r < R; ++r) {
      float value;
      memcpy(&value, x + r * stride, sizeof(value));
      UNROLLED for (int v = 0; v < VECTORS; ++v) {
        Vector& sum = sums[r][v];
        if constexpr (WAY == Way::floats) {
          sum = weights[v] * value + sum;
#if WIDTH == 16
        } else {
          const __m512 all = _mm512_set1_ps(value);
#if BFLOAT16_PAIRS
          if constexpr (WAY == Way::pairs) asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(weights[v]), "v"(all));
#endif
#if INTEGER_QUADS
          if constexpr (WAY == Way::quads) asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights[v]), "v"(all));
#endif
#endif
        }
      }
    }
  }
  add<ENDING, R>(sums, block, row);
}

typedef void (*PanelTile)(const Vector*, int64_t, const uint8_t*, int64_t, const Block&, int64_t);

template <Way WAY, Ending ENDING>
static PanelTile tile_of(int64_t rows) {
  switch (rows) {
#define TILE(R) \
  case R: if constexpr (R <= ROWS) return tile_of_panel<WAY, ENDING, R>; break;
    TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6)
#undef TILE
  }
  return nullptr;
}

static PanelTile tile_of(Way way, Ending ending, int64_t rows) {
  const bool pairs = way == Way::pairs;
  if (ending == Ending::integers) return tile_of<INTEGER_QUADS ? Way::quads : Way::floats, Ending::integers>(rows);
  if (ending == Ending::scaled) return pairs ? tile_of<Way::pairs, Ending::scaled>(rows) : tile_of<Way::floats, Ending::scaled>(rows);
  return pairs ? tile_of<Way::pairs, Ending::plain>(rows) : tile_of<Way::floats, Ending::plain>(rows);
}

}  // namespace native
