// Products of many rows, by panels.

#pragma once

#include "fixed_tile.h"
#include "fixed_wide.h"

namespace native {

#if WIDTH >= 8
// A block of a panel: its numbers' bytes, or where those of a packed matrix begin, and its rows' integers; scales, and zeros with the other sign.
struct alignas(LINE) PanelBlock {
  Vector scales[PANEL_VECTORS], zeros[PANEL_VECTORS];
  const uint8_t *bytes, *following;  // is asked for meanwhile
  int64_t steps, place;              // of which the last ones are padding
  const int32_t* x;
  const OfPanelRow* rows;
};

constexpr int64_t MOST_BLOCKS = 8, BLOCKS_INPUTS = 256;  // that a tile has one after the other, or fewer: they stay in the first cache

// A block's step of a packed matrix. A vector has eight lines, or 16: the eight that lie `apart`, too.
INLINE Integers packed_step(const uint8_t* lines, int64_t apart, int64_t step) {
  const auto eight = [&](const uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + PACKED_LINES * PACKED_INPUTS * step));
  };
#if WIDTH == 16
  return (Integers)_mm512_inserti64x4(_mm512_castsi256_si512(eight(lines)), eight(lines + apart), 1);
#else
  return (Integers)eight(lines);
#endif
}

// R rows from `row` on, of some blocks; sums go on with those in `totals` [R, PANEL_OUTPUTS].
template <Number NUMBER, bool ZEROS, bool PACKED, int R>
NOT_INLINE void tile_of_blocks(const PanelBlock* blocks, int64_t count, int64_t row, int64_t apart, float* totals) {
  for (const PanelBlock *block = blocks, *end = blocks + count; block < end; ++block) {
    const OfPanelRow* of = block->rows + row;
    Integers sums[R][PANEL_VECTORS];
    UNROLLED for (int r = 0; r < R; ++r) {
      UNROLLED for (int v = 0; v < PANEL_VECTORS; ++v) sums[r][v] = Integers{} + of[r].begin[is_paired(NUMBER) ? v : 0];
    }
    multiply_panel<NUMBER>(block->steps, block->x + row * block->place, sums, [&](int64_t step, int v) {
      if constexpr (!PACKED) return reinterpret_cast<const Integers*>(block->bytes)[step * panel_vectors(NUMBER) + v];
      __builtin_prefetch(block->following + sizeof(Integers) * step, 0, 2);
      return packed_step(block->bytes, apart, step);
    });
    Vector zeros[PANEL_VECTORS], scales[PANEL_VECTORS];
    UNROLLED for (int v = 0; v < PANEL_VECTORS; ++v) zeros[v] = block->zeros[v], scales[v] = block->scales[v];
    UNROLLED for (int r = 0; r < R; ++r) {
      const Vector row_sum = all_lanes(of[r].sum);
      UNROLLED for (int v = 0; v < PANEL_VECTORS; ++v) {
        Vector& total = *reinterpret_cast<Vector*>(totals + r * PANEL_OUTPUTS + v * WIDTH);
        Vector found = __builtin_convertvector(sums[r][v], Vector);
        if (ZEROS) found = multiplied_and_added(zeros[v], row_sum, found);
        total = multiplied_and_added(found * all_lanes(of[r].scale[is_paired(NUMBER) ? v : 0]), scales[v], total);
      }
    }
    asm("" ::: "memory");  // compilers would keep totals in registers, of which there are too few
  }
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

// Another group's scales, or zeros, lie far away, and nothing else asks for what follows: the next panel's.
INLINE void ask_for_next(const void* array, Factor factor, int64_t place) {
  const int64_t bytes = PANEL_OUTPUTS * factor_bytes(factor);
  const uint8_t* next = static_cast<const uint8_t*>(array) + place * factor_bytes(factor) + larger(bytes, LINE);
  for (int64_t byte = 0; byte < bytes; byte += LINE) __builtin_prefetch(next + byte, 0, 2);
}

// Of up to PANEL_OUTPUTS outputs from `output` on.
template <Number NUMBER, bool ZEROS>
INLINE void read_scales(const Product& product, const Scaled& scaled, int64_t group, int64_t output, int64_t columns, PanelBlock& block) {
  const int64_t place = group * product.outputs + output;
  if (ZEROS) {
    ask_for_next(scaled.zeros, scaled.factor, place);
    read_factors<true>(scaled.zeros, scaled.factor, place, columns, block.zeros);
    if (is_paired(NUMBER)) part_neighbours(block.zeros);
    constexpr float ONE = NUMBER == Number::float4 ? -2.0f : -1.0f;
    UNROLLED for (int v = 0; v < PANEL_VECTORS; ++v) block.zeros[v] *= v == 0 ? ONE : ONE * times_of_second(NUMBER);
  }
  if (scaled.groups == 0) {
    UNROLLED for (int v = 0; v < PANEL_VECTORS; ++v) block.scales[v] = Vector{} + 1.0f;
  } else {
    ask_for_next(scaled.scales, scaled.factor, place);
    read_factors<false>(scaled.scales, scaled.factor, place, columns, block.scales);
    if (is_paired(NUMBER)) part_neighbours(block.scales);
  }
}

// Up to PANEL_OUTPUTS outputs from `output` on, of the rows of some tiles.
template <Number NUMBER, bool ZEROS, bool PACKED>
static void outputs_of_tiles(const Product& product, const Scaled& scaled, const Blocks& blocks, const Split& tiles, int64_t first, int64_t last,
                             int64_t output, int64_t columns) {
  constexpr int64_t EACH = is_paired(NUMBER) ? 2 : 1, MOST = PACKED ? MOST_BLOCKS : 1;
  const FixedRows rows(product, scaled, blocks);
  int64_t starts[MOST_PANEL_ROWS / PANEL_ROWS + 1];  // to divide takes as long as half a tile
  for (int64_t tile = first; tile <= last; ++tile) starts[tile - first] = tiles.start(tile);
  const int64_t begin = starts[0], count = starts[last - first] - begin;
  const uint8_t* matrix = static_cast<const uint8_t*>(product.weight) + output / EACH * product.inputs;
  const int64_t apart = columns > PACKED_OUTPUTS ? PACKED_LINES * product.inputs : 0;
  alignas(LINE) Integers panel[FIXED_BLOCK / step_inputs(Number::int8) * PANEL_VECTORS];
  alignas(LINE) float totals[MOST_PANEL_ROWS * PANEL_OUTPUTS];
  memset(totals, 0, count * PANEL_OUTPUTS * sizeof(float));
  PanelBlock waiting[MOST];
  int64_t blocks_waiting = 0;
  const auto multiply = [&] {
    for (const int64_t* start = starts; *start < begin + count; ++start) {
      with_panel_rows(start[1] - start[0], [&](auto size) {
        float* own = totals + (*start - begin) * PANEL_OUTPUTS;
        tile_of_blocks<NUMBER, ZEROS, PACKED, size.value>(waiting, blocks_waiting, *start, apart, own);
      });
    }
    blocks_waiting = 0;
  };
  blocks.for_each([&](int64_t number, int64_t group, int64_t start, int64_t inputs) {
    PanelBlock& block = waiting[blocks_waiting++];
    read_scales<NUMBER, ZEROS>(product, scaled, group, output, columns, block);
    const uint8_t* lines = matrix + (PACKED ? PACKED_LINES : 1) * start;
    block.following = matrix + PANEL_OUTPUTS / EACH * (product.inputs + start);
    block.bytes = PACKED ? lines : reinterpret_cast<const uint8_t*>(panel);
    if (!PACKED) fill_panel<NUMBER>(lines, product.inputs, columns, inputs, block.following, panel);
    block.steps = (inputs + step_inputs(NUMBER) - 1) / step_inputs(NUMBER), block.place = blocks.place / step_inputs(NUMBER);
    block.x = reinterpret_cast<const int32_t*>(rows.values) + product.rows * number * block.place;
    block.rows = rows.of_panels + number * rows.together;
    if (blocks_waiting == MOST || blocks_waiting * blocks.place >= BLOCKS_INPUTS) multiply();
  });
  multiply();
  store_totals<NUMBER>(totals, count, columns, product.out + begin * product.outputs + output, product.outputs);
}

template <Number NUMBER, bool ZEROS, bool PACKED>
static void outputs_by_panels(const Product& product, const Scaled& scaled, const Blocks& blocks, int64_t first, int64_t last) {
  const Split tiles(product.rows, PANEL_ROWS), parts(tiles.count, MOST_PANEL_ROWS / PANEL_ROWS);
  for (int64_t output = first; output < last; output += PANEL_OUTPUTS) {
    for (int64_t part = 0; part < parts.count; ++part) {
      outputs_of_tiles<NUMBER, ZEROS, PACKED>(product, scaled, blocks, tiles, parts.start(part), parts.start(part + 1), output,
                                              smaller(PANEL_OUTPUTS, last - output));
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
