// Products of a few rows with packed numbers of 4 bits, where vectors are wide: as in `fixed_lanes.h`, but of twice the lines. A block's
// sums become floats in the registers where they were made.

#pragma once

#include "fixed_lanes.h"

namespace native {

#if WIDTH == 16
constexpr int64_t WIDE_OUTPUTS = 2 * LANE_OUTPUTS;  // of a tile: eight lines, and the eight that lie behind them
constexpr int64_t INPUTS_AHEAD = 768;               // so much further on both are asked for

// As `factors_of_lines`.
template <bool ZEROS>
INLINE void factors_of_wide(const uint8_t* from, Factor factor, Vector (&to)[2]) {
  if (factor == Factor::bfloat16) {
    const Integers both = (Integers)_mm512_loadu_si512(from);
    to[0] = (Vector)(both << 16), to[1] = (Vector)(both & int32_t(0xffff0000u));
  } else if (factor == Factor::bytes) {
    const Integers both = (Integers)_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    const Integers one = ZEROS ? (both << 24) >> 24 : both & 255, other = ZEROS ? (both << 16) >> 24 : both >> 8;
    to[0] = __builtin_convertvector(one, Vector), to[1] = __builtin_convertvector(other, Vector);
    if (ZEROS) to[0] *= ZERO_STEP, to[1] *= ZERO_STEP;
  } else {
    const Vector* floats = reinterpret_cast<const Vector*>(from);
    to[0] = floats[0], to[1] = floats[1];
    part_neighbours(to);
  }
}

// Scales of a tile, or zeros: those of the next group lie `apart` bytes further.
struct WideFactors {
  const uint8_t* from;
  int64_t apart;

  WideFactors(const void* array, const Product& product, const Scaled& scaled, int64_t output)
      : from(static_cast<const uint8_t*>(array) + output * factor_bytes(scaled.factor)),
        apart(product.outputs * factor_bytes(scaled.factor)) {}
  // Those of a group. Another's lie far away, and nothing else asks for what follows.
  INLINE_MEMBER const uint8_t* of(int64_t group) const {
    __builtin_prefetch(from + group * apart + LINE, 0, 2);
    return from + group * apart;
  }

  // The same for all outputs and groups.
  explicit WideFactors(const float (&all)[WIDE_OUTPUTS]) : from(reinterpret_cast<const uint8_t*>(all)), apart(0) {}
};

// R rows, four at most, and WIDE_OUTPUTS outputs from `output` on.
template <Number NUMBER, int R>
NOT_INLINE void wide_tile(const Product& product, const Scaled& scaled, const Blocks& blocks, int64_t output) {
  typedef Pairs<NUMBER, Integers> Numbers;
  const FixedRows rows(product, scaled, blocks);
  alignas(LINE) float none[WIDE_OUTPUTS] = {}, ones[WIDE_OUTPUTS];
  for (float& one : ones) one = 1;
  const bool plain = scaled.groups == 0;
  const WideFactors zeros = plain || scaled.zeros == nullptr ? WideFactors(none) : WideFactors(scaled.zeros, product, scaled, output);
  const WideFactors scales = plain ? WideFactors(ones) : WideFactors(scaled.scales, product, scaled, output);
  const Factor factor = plain ? Factor::float32 : scaled.factor;
  const int64_t next = LANE_LINES * product.inputs;
  const uint8_t* matrix = static_cast<const uint8_t*>(product.weight) + output / 2 * product.inputs;
  Vector totals[R][2] = {};
  blocks.for_each([&](int64_t block, int64_t group, int64_t start, int64_t inputs) __attribute__((always_inline)) {
    const int8_t* x = reinterpret_cast<const int8_t*>(rows.block(blocks, 0, block));
    const uint8_t* lines = matrix + LANE_LINES * start;
    const int64_t ahead = start + INPUTS_AHEAD;
    // behind the end the next tile begins, after the eight lines that are read here, too
    const uint8_t* following = matrix + LANE_LINES * ahead + (ahead < product.inputs ? 0 : next);
    Integers sums[R][2] = {};
    for (int64_t input = 0; input < inputs; input += PACKED_INPUTS) {  // one of four
      __builtin_prefetch(following + LANE_LINES * input, 0, 2), __builtin_prefetch(following + next + LANE_LINES * input, 0, 2);
      const auto eight = [&](const uint8_t* from) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + LANE_LINES * input));
      };
      const Numbers numbers((Integers)_mm512_inserti64x4(_mm512_castsi256_si512(eight(lines)), eight(lines + next), 1));
      UNROLLED for (int r = 0; r < R; ++r) {
        int32_t quad;
        memcpy(&quad, x + r * rows.stride + input, sizeof(quad));
        const Integers row = Integers{} + quad;
        sums[r][0] = plus_step<NUMBER>(sums[r][0], numbers.first, row);
        sums[r][1] = plus_step<NUMBER>(sums[r][1], numbers.second, row);
      }
    }
    Vector taken[2], scaling[2];
    factors_of_wide<true>(zeros.of(group), factor, taken);
    factors_of_wide<false>(scales.of(group), factor, scaling);
    UNROLLED for (int r = 0; r < R; ++r) {
      const int64_t of_row = block * rows.together + r;
      const Integers row_sums = Integers{} + rows.sums[of_row];
      const Vector row_scales = all_lanes(rows.scales[of_row]);
      const Integers other = Numbers::parted(sums[r][0], sums[r][1]);
      totals[r][0] = with_block<NUMBER>(totals[r][0], sums[r][0], row_sums, row_scales, true, taken[0], scaling[0]);
      totals[r][1] = with_block<NUMBER>(totals[r][1], other, row_sums, row_scales, true, taken[1], scaling[1]);
    }
  });
  UNROLLED for (int r = 0; r < R; ++r) {
    join_neighbours(totals[r]);
    Vector* out = reinterpret_cast<Vector*>(product.out + r * product.outputs + output);
    out[0] = totals[r][0], out[1] = totals[r][1];
  }
}

// Outputs from `first` on, as many tiles as end at `last` or before, of all rows, of which there are four at most; the first output behind
// them.
template <Number NUMBER>
static int64_t outputs_by_wide_tiles(const Product& product, const Scaled& scaled, const Blocks& blocks, int64_t first, int64_t last) {
  for (; first + WIDE_OUTPUTS <= last; first += WIDE_OUTPUTS) {
#define TILE(R) case R: wide_tile<NUMBER, R>(product, scaled, blocks, first); break;
    switch (product.rows) { TILE(1) TILE(2) TILE(3) TILE(4) }
#undef TILE
  }
  return first;
}
#endif

}  // namespace native
