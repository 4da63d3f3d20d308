// Products in fixed point of many rows: a block of a few outputs is made integers of 16 bits once, a panel, whose lanes are outputs.

#pragma once

#include "fixed_tile.h"

namespace native {

#if WIDTH >= 8
constexpr int FIXED_VECTORS = 2, FIXED_COLUMNS = FIXED_VECTORS * WIDTH;  // outputs of a panel
constexpr int FIXED_PANEL_ROWS = 6;
constexpr int64_t MOST_FEW_ROWS = 4;  // to more of them a panel pays

// Of 8 outputs 16 inputs each: pairs of neighbours, of all outputs in turn.
INLINE void store_pairs(const __m256i (&of)[8], Integers* to) {
  __m256i twos[8], fours[8];
  UNROLLED for (int i = 0; i < 8; i += 2) {
    twos[i] = _mm256_unpacklo_epi32(of[i], of[i + 1]), twos[i + 1] = _mm256_unpackhi_epi32(of[i], of[i + 1]);
  }
  UNROLLED for (int i = 0; i < 8; i += 4) {
    UNROLLED for (int half = 0; half < 2; ++half) {
      fours[i + 2 * half] = _mm256_unpacklo_epi64(twos[i + half], twos[i + 2 + half]);
      fours[i + 2 * half + 1] = _mm256_unpackhi_epi64(twos[i + half], twos[i + 2 + half]);
    }
  }
  UNROLLED for (int i = 0; i < 4; ++i) {
    const auto store = [&](int pair, __m256i all) { _mm256_store_si256(reinterpret_cast<__m256i*>(to + pair * FIXED_VECTORS), all); };
    store(i, _mm256_permute2x128_si256(fours[i], fours[4 + i], 0x20));
    store(4 + i, _mm256_permute2x128_si256(fours[i], fours[4 + i], 0x31));
  }
}

// 16 inputs of 8 outputs, whose lines are `stride` apart, with the offset.
template <Number NUMBER>
INLINE void widen_eight(const uint8_t* from, int64_t stride, Integers* to) {
  __m256i of[8];
  const auto bytes = [&](int line) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + line * stride)); };
  if constexpr (is_paired(NUMBER)) {
    const __m128i values = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0), four = _mm_set1_epi8(15);
    UNROLLED for (int line = 0; line < 4; ++line) {
      __m128i first = _mm_and_si128(bytes(line), four), second = _mm_and_si128(_mm_srli_epi16(bytes(line), 4), four);
      if (NUMBER == Number::float4) first = _mm_shuffle_epi8(values, first), second = _mm_shuffle_epi8(values, second);
      of[2 * line] = _mm256_cvtepu8_epi16(first), of[2 * line + 1] = _mm256_cvtepu8_epi16(second);
    }
  } else {
    UNROLLED for (int line = 0; line < 8; ++line) of[line] = _mm256_cvtepi8_epi16(bytes(line));
  }
  store_pairs(of, to);
}

// A block of inputs of up to FIXED_COLUMNS outputs. Steps are pairs of inputs, in eights.
template <Number NUMBER>
INLINE void fill_fixed(const uint8_t* from, int64_t stride, int64_t count, int64_t inputs, const uint8_t* following, Integers* panel) {
  constexpr int64_t EACH = is_paired(NUMBER) ? 2 : 1, LINES = FIXED_COLUMNS / EACH;
  for (int64_t done = 0; done < inputs; done += 16, panel += 8 * FIXED_VECTORS) {
    UNROLLED for (int64_t byte = 0; byte < LINES * 16; byte += LINE) __builtin_prefetch(following + LINES * done + byte, 0, 2);
    const uint8_t* some = from + done;
    int64_t apart = stride;
    uint8_t edge[LINES][16] = {};
    if (count < FIXED_COLUMNS || done + 16 > inputs) {  // what is behind may belong to nobody
      for (int64_t line = 0; line < count / EACH; ++line) memcpy(edge[line], some + line * stride, smaller(16, inputs - done));
      some = edge[0], apart = 16;
    }
    UNROLLED for (int64_t eight = 0; eight < FIXED_COLUMNS / 8; ++eight) {
      widen_eight<NUMBER>(some + eight * 8 / EACH * apart, apart, reinterpret_cast<Integers*>(reinterpret_cast<int32_t*>(panel) + 8 * eight));
    }
  }
}

// What a panel's sums become.
struct FixedBlock {
  Vector scales[FIXED_VECTORS], zeros[FIXED_VECTORS];
  bool with_zeros, begin;
  int64_t columns;
  const float* row_scales;
  const int32_t* row_sums;
};

template <Number NUMBER, int R>
NOT_INLINE void tile_of_fixed_panel(const Integers* panel, int64_t steps, const int16_t* x, int64_t stride, const FixedBlock& block,
                                    int64_t row, float* out, int64_t outputs) {
  Integers sums[R][FIXED_VECTORS] = {};
  for (int64_t step = 0; step < steps; ++step, panel += FIXED_VECTORS, x += 2) {
    Integers weights[FIXED_VECTORS];
    UNROLLED for (int v = 0; v < FIXED_VECTORS; ++v) weights[v] = panel[v];
    UNROLLED for (int r = 0; r < R; ++r) {
      int32_t pair;
      memcpy(&pair, x + r * stride, sizeof(pair));
      const Integers all = Integers{} + pair;
      UNROLLED for (int v = 0; v < FIXED_VECTORS; ++v) sums[r][v] = plus_products(sums[r][v], (Shorts)weights[v], (Shorts)all);
    }
  }
  UNROLLED for (int r = 0; r < R; ++r) {
    const auto with = [&](Vector before, int v) __attribute__((always_inline)) {
      return with_block<NUMBER>(before, sums[r][v], Integers{} + block.row_sums[row + r], Vector{} + block.row_scales[row + r],
                                block.with_zeros, block.zeros[v], block.scales[v]);
    };
    float* to = out + r * outputs;
    if (block.columns == FIXED_COLUMNS) {
      UNROLLED for (int v = 0; v < FIXED_VECTORS; ++v) {
        Vector& all = *reinterpret_cast<Vector*>(to + WIDTH * v);
        all = with(block.begin ? Vector{} : all, v);
      }
      continue;
    }
    Vector all[FIXED_VECTORS] = {};
    if (!block.begin) memcpy(all, to, block.columns * sizeof(float));
    UNROLLED for (int v = 0; v < FIXED_VECTORS; ++v) all[v] = with(all[v], v);
    memcpy(to, all, block.columns * sizeof(float));
  }
}

template <Number NUMBER>
static void outputs_by_panels(const Product& product, const Scaled& scaled, const Blocks& blocks, int64_t first, int64_t last) {
  constexpr int64_t EACH = is_paired(NUMBER) ? 2 : 1;
  const FixedRows rows(product, blocks);
  const Split tiles(product.rows, FIXED_PANEL_ROWS);
  alignas(64) Integers panel[FIXED_BLOCK / 2 * FIXED_VECTORS];
  for (int64_t output = first; output < last; output += FIXED_COLUMNS) {
    const uint8_t* matrix = static_cast<const uint8_t*>(product.weight) + output / EACH * product.inputs;
    blocks.for_each([&](int64_t number, int64_t group, int64_t start, int64_t inputs) {
      FixedBlock block;
      block.columns = smaller(FIXED_COLUMNS, last - output), block.begin = number == 0;
      block.with_zeros = scaled.zeros != nullptr;
      const int64_t place = group * product.outputs + output;
      UNROLLED for (int v = 0; v < FIXED_VECTORS; ++v) block.scales[v] = Vector{} + 1.0f, block.zeros[v] = Vector{};
      if (block.with_zeros) read_factors<true>(scaled.zeros, scaled.factor, place, block.columns, block.zeros);
      if (scaled.groups != 0) read_factors<false>(scaled.scales, scaled.factor, place, block.columns, block.scales);
      block.row_scales = rows.scales + number * rows.together, block.row_sums = rows.sums + number * rows.together;
      const uint8_t* following = matrix + FIXED_COLUMNS / EACH * (product.inputs + start);
      fill_fixed<NUMBER>(matrix + start, product.inputs, block.columns, inputs, following, panel);
      for (int64_t tile = 0; tile < tiles.count; ++tile) {
        const int64_t row = tiles.start(tile), steps = (inputs + 1) / 2;
        const int16_t* x = rows.values + row * rows.stride + number * blocks.place;
        float* out = product.out + row * product.outputs + output;
#define TILE(R) case R: tile_of_fixed_panel<NUMBER, R>(panel, steps, x, rows.stride, block, row, out, product.outputs); break;
        switch (tiles.size(tile)) { TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) }
#undef TILE
      }
    });
  }
}
#endif

template <Number NUMBER>
static void outputs_of_number(const Product& product, const Scaled& scaled, int64_t first, int64_t last) {
  const Blocks blocks(product.inputs, scaled);
#if WIDTH >= 8
  if (product.rows > MOST_FEW_ROWS) return outputs_by_panels<NUMBER>(product, scaled, blocks, first, last);
#endif
  int64_t row = 0;
  for (; row + 4 <= product.rows; row += 4) tiles_of_fixed<NUMBER, 4>(product, scaled, blocks, row, first, last);
  for (; row + 2 <= product.rows; row += 2) tiles_of_fixed<NUMBER, 2>(product, scaled, blocks, row, first, last);
  if (row < product.rows) tiles_of_fixed<NUMBER, 1>(product, scaled, blocks, row, first, last);
}

// Outputs [first, last) of all rows.
static void outputs_of_fixed(const Product& product, const Scaled& scaled, int64_t first, int64_t last) {
  switch (scaled.number) {
    case Number::int4: return outputs_of_number<Number::int4>(product, scaled, first, last);
    case Number::float4: return outputs_of_number<Number::float4>(product, scaled, first, last);
    default: return outputs_of_number<Number::int8>(product, scaled, first, last);
  }
}

}  // namespace native
