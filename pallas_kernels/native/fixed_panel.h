// Products of many rows, by panels.

#pragma once

#include "fixed_tile.h"
#include "fixed_wide.h"

namespace native {

#if WIDTH >= 8
// What a panel's sums become.
struct FixedBlock {
  Vector scales[PANEL_VECTORS], zeros[PANEL_VECTORS];
  const float* row_scales;
  const int32_t* row_sums;
};

// Sums of R rows, with which those in `totals` [R, PANEL_OUTPUTS] go on.
template <Number NUMBER, bool ZEROS, int R>
INLINE void add_block(const Integers (&sums)[R][PANEL_VECTORS], const FixedBlock& block, int64_t row, float* totals) {
  UNROLLED for (int r = 0; r < R; ++r) {
    const Integers row_sums = Integers{} + block.row_sums[row + r];
    float scale;
    memcpy(&scale, block.row_scales + row + r, sizeof(scale));
    UNROLLED for (int v = 0; v < PANEL_VECTORS; ++v) {
      Vector& total = *reinterpret_cast<Vector*>(totals + r * PANEL_OUTPUTS + v * WIDTH);
      total = with_block<NUMBER>(total, sums[r][v], row_sums, all_lanes(scale), ZEROS, block.zeros[v], block.scales[v]);
    }
  }
}

template <Number NUMBER, int R, bool ZEROS>
NOT_INLINE void tile_of_fixed_panel(const Integers* panel, int64_t steps, const int32_t* x, const FixedBlock& block, int64_t row,
                                    float* totals) {
  Integers sums[R][PANEL_VECTORS] = {};
  multiply_panel<NUMBER>(steps, x, sums, [&](int64_t step, int v) { return panel[step * panel_vectors(NUMBER) + v]; });
  add_block<NUMBER, ZEROS>(sums, block, row, totals);
}

// The same of a packed matrix from an input on, which is a panel. A vector has eight lines, or 16: the eight from `next` on, too; `following`
// is asked for meanwhile.
template <Number NUMBER, int R, bool ZEROS>
NOT_INLINE void tile_of_packed(const uint8_t* lines, const uint8_t* next, const uint8_t* following, int64_t steps, const int32_t* x,
                               const FixedBlock& block, int64_t row, float* totals) {
  constexpr int64_t STEP = PACKED_LINES * PACKED_INPUTS;
  Integers sums[R][PANEL_VECTORS] = {};
  multiply_panel<NUMBER>(steps, x, sums, [&](int64_t step, int) {
    const auto of_lines = [&](const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + STEP * step)); };
    __builtin_prefetch(following + sizeof(Integers) * step, 0, 2);
#if WIDTH == 16
    return (Integers)_mm512_inserti64x4(_mm512_castsi256_si512(of_lines(lines)), of_lines(next), 1);
#else
    return (Integers)of_lines(lines);
#endif
  });
  add_block<NUMBER, ZEROS>(sums, block, row, totals);
}

// Outputs that have their sums, of some rows.
template <Number NUMBER>
INLINE void store_totals(const float* totals, int64_t rows, int64_t columns, float* out, int64_t outputs) {
  for (int64_t row = 0; row < rows; ++row, out += outputs, totals += PANEL_OUTPUTS) {
    Vector all[PANEL_VECTORS];
    UNROLLED for (int v = 0; v < PANEL_VECTORS; ++v) all[v] = *reinterpret_cast<const Vector*>(totals + v * WIDTH);
    if (is_paired(NUMBER)) join_neighbours(all);
    if (columns == PANEL_OUTPUTS) {
      UNROLLED for (int v = 0; v < PANEL_VECTORS; ++v) *reinterpret_cast<Vector*>(out + v * WIDTH) = all[v];
    } else {
      memcpy(out, all, columns * sizeof(float));
    }
  }
}

// Scales and zeros of some outputs lie far apart, group by group, and nothing else asks for them: all at once.
INLINE void ask_for_factors(const Product& product, const Scaled& scaled, int64_t first, int64_t last) {
  const int64_t size = factor_bytes(scaled.factor);
  for (const void* array : {scaled.scales, scaled.zeros}) {
    for (int64_t group = 0; array != nullptr && group < scaled.groups; ++group) {
      const uint8_t* from = static_cast<const uint8_t*>(array) + group * product.outputs * size;
      for (int64_t at = first * size / LINE * LINE; at < last * size; at += LINE) __builtin_prefetch(from + at, 0, 2);
    }
  }
}

template <Number NUMBER, bool ZEROS, bool PACKED>
static void outputs_by_panels(const Product& product, const Scaled& scaled, const Blocks& blocks, int64_t first, int64_t last) {
  constexpr int64_t EACH = is_paired(NUMBER) ? 2 : 1;
  const FixedRows rows(product, scaled, blocks);
  const PanelRows of_tiles(product.rows, rows.values);
  const Split groups(of_tiles.tiles.count, MOST_PANEL_ROWS / PANEL_ROWS);
  alignas(LINE) Integers panel[FIXED_BLOCK / step_inputs(Number::int8) * PANEL_VECTORS];
  alignas(LINE) float totals[MOST_PANEL_ROWS * PANEL_OUTPUTS];
  ask_for_factors(product, scaled, first, last);
  for (int64_t output = first; output < last; output += PANEL_OUTPUTS) {
    const int64_t columns = smaller(PANEL_OUTPUTS, last - output);
    const uint8_t* matrix = static_cast<const uint8_t*>(product.weight) + output / EACH * product.inputs;
    FixedBlock block;
    UNROLLED for (int v = 0; v < PANEL_VECTORS; ++v) block.scales[v] = Vector{} + 1.0f, block.zeros[v] = Vector{};
    for (int64_t part = 0; part < groups.count; ++part) {
      const int64_t begin = of_tiles.tiles.start(groups.start(part)), end = of_tiles.tiles.start(groups.start(part + 1));
      memset(totals, 0, (end - begin) * PANEL_OUTPUTS * sizeof(float));
      blocks.for_each([&](int64_t number, int64_t group, int64_t start, int64_t inputs) {
        const int64_t place = group * product.outputs + output, steps = blocks.place / step_inputs(NUMBER);
        if (ZEROS) {
          read_factors<true>(scaled.zeros, scaled.factor, place, columns, block.zeros);
          if (is_paired(NUMBER)) part_neighbours(block.zeros);
        }
        if (scaled.groups != 0) {
          read_factors<false>(scaled.scales, scaled.factor, place, columns, block.scales);
          if (is_paired(NUMBER)) part_neighbours(block.scales);
        }
        block.row_scales = rows.scales + number * rows.together, block.row_sums = rows.sums + number * rows.together;
        const uint8_t* lines = matrix + (PACKED ? PACKED_LINES : 1) * start;
        const uint8_t* following = matrix + PANEL_OUTPUTS / EACH * (product.inputs + start);
        if (!PACKED) fill_panel<NUMBER>(lines, product.inputs, columns, inputs, following, panel);
        for (int64_t tile = groups.start(part); tile < groups.start(part + 1); ++tile) {
          const int64_t row = of_tiles.tiles.start(tile);
          const int32_t* x = of_tiles.tile(tile, number * steps, steps);
          float* own = totals + (row - begin) * PANEL_OUTPUTS;
          with_panel_rows(of_tiles.tiles.size(tile), [&](auto size) {
            const int64_t some = (inputs + step_inputs(NUMBER) - 1) / step_inputs(NUMBER);
            if constexpr (PACKED) {
              const uint8_t* next = columns > PACKED_OUTPUTS ? lines + PACKED_LINES * product.inputs : lines;
              tile_of_packed<NUMBER, size.value, ZEROS>(lines, next, following, some, x, block, row, own);
            } else {
              tile_of_fixed_panel<NUMBER, size.value, ZEROS>(panel, some, x, block, row, own);
            }
          });
        }
      });
      store_totals<NUMBER>(totals, end - begin, columns, product.out + begin * product.outputs + output, product.outputs);
    }
  }
}
#endif

template <Number NUMBER, bool PACKED = false>
static void outputs_of_number(const Product& product, const Scaled& scaled, int64_t first, int64_t last) {
  const Blocks blocks(product.inputs, scaled);
#if WIDTH >= 8
  if (by_panels(product.rows)) {
    const auto outputs = scaled.zeros == nullptr ? outputs_by_panels<NUMBER, false, PACKED> : outputs_by_panels<NUMBER, true, PACKED>;
    return outputs(product, scaled, blocks, first, last);
  }
#if WIDTH == 16
  if constexpr (PACKED) first = outputs_by_wide_tiles<NUMBER>(product, scaled, blocks, first, last);
#endif
  if constexpr (is_paired(NUMBER)) {
    outputs_by_lanes<NUMBER, PACKED>(product, scaled, blocks, first, last);
  } else {
    outputs_by_tiles<NUMBER>(product, scaled, blocks, first, last);
  }
#else
  outputs_by_tiles<NUMBER>(product, scaled, blocks, first, last);
#endif
}

// Outputs [first, last) of all rows.
static void outputs_of_fixed(const Product& product, const Scaled& scaled, int64_t first, int64_t last) {
  if (scaled.packed && scaled.number == Number::int4) return outputs_of_number<Number::int4, true>(product, scaled, first, last);
  if (scaled.packed) return outputs_of_number<Number::float4, true>(product, scaled, first, last);
  switch (scaled.number) {
    case Number::int4: return outputs_of_number<Number::int4>(product, scaled, first, last);
    case Number::float4: return outputs_of_number<Number::float4>(product, scaled, first, last);
    default: return outputs_of_number<Number::int8>(product, scaled, first, last);
  }
}

}  // namespace native
