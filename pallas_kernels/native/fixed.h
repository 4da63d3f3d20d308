// Products of rows of bfloat16 with matrices of int8, int4 or float4 and scales, in fixed point.
//
// A row's inputs are made integers, block by block, ties to even. Beside numbers of 4 bits these have 8: the nearest of 127 steps of the
// block's largest. Beside int8 they have 16, over a power of two: exact where they are not below a 128th of the block's largest, and never off
// by more than its 65,536th. With the numbers of the matrix, which are integers, they are summed in int32, and a block's sum is converted,
// takes its zero and its scales, and is added to those of the blocks before in float32. So neither instructions nor threads nor the rows and
// outputs beside it change a bit of a row, and no number of the matrix is rounded. Where a row has what is not finite, all its outputs are
// NaN.

#pragma once

#include "eight_sums.h"
#include "factors.h"
#include "panel_sums.h"

namespace native {

typedef float EightFloats __attribute__((vector_size(32), aligned(4), may_alias));

// weight [outputs, inputs], or of 4 bits [outputs / 2, inputs], lines of two outputs: 2 j in the low bits of a byte. With `packed` that
// is [outputs / 16, inputs / 4, 8, 4], and of `group` inputs there are fours, or all. scales and zeros [groups, outputs] of type
// `factor`; zeros may be null. No groups: numbers are what they are. `factors` [outputs], of products, or null.
struct Scaled {
  Number number;
  bool packed;
  int64_t group, groups;
  Factor factor;
  const void *scales, *zeros;
  const float* factors;

  bool paired() const { return is_paired(number); }
  // Of line `number` of a matrix.
  const uint8_t* line(const Product& product, int64_t number) const {
    const uint8_t* matrix = static_cast<const uint8_t*>(product.weight);
    if (!packed) return matrix + number * product.inputs;
    return matrix + number / PACKED_LINES * PACKED_LINES * product.inputs + number % PACKED_LINES * PACKED_INPUTS;
  }
  bool fixed() const { return paired() || number == Number::int8; }
};

constexpr int64_t FIXED_BLOCK = 256;  // inputs, at most: int32 holds a sum of so many products of 8 bits and 16
constexpr int64_t FIXED_ROWS = 4;     // of a tile, at most

// Inputs in blocks, none of which has inputs of two groups of scales.
struct Blocks {
  int64_t inputs, group, most, place, count;

  Blocks(int64_t inputs, const Scaled& scaled)
      : inputs(inputs),
        group(scaled.groups <= 1 ? larger(1, inputs) : scaled.group),
        most(scaled.paired() ? FIXED_BLOCK / 2 : FIXED_BLOCK),
        place((smaller(group, most) + CHUNK - 1) / CHUNK * CHUNK),
        count(inputs / group * of_inputs(group) + of_inputs(inputs % group)) {}

  int64_t of_inputs(int64_t some) const { return (some + most - 1) / most; }

  // Calls `f(block, number of its group, first input, inputs)` for each in turn.
  template <typename F>
  INLINE_MEMBER void for_each(const F& f) const {
    int64_t block = 0, number = 0;
    for (int64_t first = 0, end; first < inputs; first = end, ++number) {
      end = smaller(inputs, first + group);
      for (int64_t start = first; start < end; start += most) f(block++, number, start, smaller(most, end - start));
    }
  }
};

// To more than four rows a panel pays.
inline bool by_panels(int64_t rows) { return WIDTH >= 8 && rows > FIXED_ROWS; }

inline int64_t row_bytes(const Scaled& scaled) { return scaled.paired() ? sizeof(int8_t) : sizeof(int16_t); }  // of an integer

// What panels take of a row's block: from where on the first outputs' sums count, and the second ones', so that numbers lose their offset; the
// sum of the row's integers; and by what sums are multiplied, of which the second ones may be a multiple.
struct OfPanelRow {
  int32_t begin[2];
  float sum, scale[2];

  OfPanelRow(Number number, int32_t sum, float scale)
      : begin{-offset_of(number) * sum, -offset_of(number) * sum}, sum(float(sum)), scale{scale, scale} {
    if (times_of_second(number) > 1) begin[1] += begin[0] * times_of_second(number), this->scale[1] /= times_of_second(number);
  }
};

// Rows, `place` integers for each block, as panels take them if they are multiplied so; behind them scales and sums of each block, row by row,
// or what panels have of these.
struct FixedRows {
  int64_t each, stride, together;
  uint8_t* values;
  float* scales;
  int32_t* sums;
  OfPanelRow* of_panels;

  FixedRows(const Product& product, const Scaled& scaled, const Blocks& blocks)
      : each(row_bytes(scaled)),
        stride(blocks.count * blocks.place),
        together((product.rows + FIXED_ROWS - 1) / FIXED_ROWS * FIXED_ROWS),
        values(static_cast<uint8_t*>(product.prepared)),
        scales(reinterpret_cast<float*>(values + product.rows * stride * each)),
        sums(reinterpret_cast<int32_t*>(scales + blocks.count * together)),
        of_panels(reinterpret_cast<OfPanelRow*>(scales)) {}

  uint8_t* block(const Blocks& blocks, int64_t row, int64_t number) const {
    return values + (row * stride + number * blocks.place) * each;
  }
};

inline int64_t fixed_bytes(int64_t rows, int64_t inputs, const Scaled& scaled) {
  const Blocks blocks(inputs, scaled);
  return blocks.count * ((rows + FIXED_ROWS - 1) * sizeof(OfPanelRow) + rows * blocks.place * row_bytes(scaled));
}

// Rounded once, whatever the machine has.
template <typename Floats>
INLINE Floats multiplied_and_added(Floats a, Floats b, Floats c) {
#if WIDTH == 16
  if constexpr (sizeof(Floats) == 64) return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#endif
#if WIDTH >= 8
  if constexpr (sizeof(Floats) == 32) return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#endif
  for (size_t i = 0; i < sizeof(Floats) / sizeof(float); ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
}

typedef uint16_t Narrow __attribute__((vector_size(2 * WIDTH), aligned(2), may_alias));

// Of each its lower 16 bits, of which the upper ones are zero.
INLINE Narrow lower_halves(Integers all) {
#if WIDTH == 16
  return (Narrow)_mm512_cvtepi32_epi16((__m512i)all);
#elif WIDTH == 8
  const __m256i packed = _mm256_packus_epi32((__m256i)all, (__m256i)all);
  return (Narrow)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
  return __builtin_convertvector(all, Narrow);
#endif
}

INLINE int32_t largest_lane(Integers all) {
#if WIDTH == 16
  return _mm512_reduce_max_epi32((__m512i)all);
#else
  int32_t most = all[0];
  for (int i = 1; i < WIDTH; ++i) most = all[i] > most ? all[i] : most;
  return most;
#endif
}

INLINE int32_t sum_of_lanes(Integers all) {
#if WIDTH == 16
  return _mm512_reduce_add_epi32((__m512i)all);
#else
  int32_t sum = 0;
  for (int i = 0; i < WIDTH; ++i) sum += all[i];
  return sum;
#endif
}

static void prepare_fixed(const Product& product, const Scaled& scaled, int64_t row) {
  const Blocks blocks(product.inputs, scaled);
  const FixedRows rows(product, scaled, blocks);
  const uint16_t* from = static_cast<const uint16_t*>(product.x) + row * product.inputs;
  const bool panels = by_panels(product.rows);
#if WIDTH >= 8
  const PanelRows::Place place = PanelRows(product.rows, rows.values).place(row);
#endif
  blocks.for_each([&](int64_t block, int64_t, int64_t start, int64_t inputs) {
    uint16_t copy[FIXED_BLOCK];
    const uint16_t* given = from + start;
    if (inputs < blocks.place) {
      memset(copy, 0, blocks.place * sizeof(uint16_t));
      given = static_cast<const uint16_t*>(memcpy(copy, given, inputs * sizeof(uint16_t)));
    }
    Integers most = {};  // as integers, magnitudes have the order of their values, and NaN comes last
    const auto compare = [&](Vector values) {
      const Integers magnitudes = (Integers)values & 0x7fffffff;
      most = magnitudes > most ? magnitudes : most;
    };
    for (int64_t i = 0; i < blocks.place; i += 2 * WIDTH) compare(widened<false>(given + i, 0)), compare(widened<true>(given + i, 0));
    constexpr int32_t LEAST = 16 << 23;  // where the largest is less, powers of two would be too small for a float
    const int32_t found = largest_lane(most), bits = found > LEAST ? found : LEAST;
    const bool finite = bits < 0x7f800000;
    float factor, scale;
    if (scaled.paired()) {
      float largest;
      memcpy(&largest, &bits, sizeof(largest));
      factor = 127.0f / largest, scale = largest * (scaled.number == Number::float4 ? 0.5f / 127 : 1.0f / 127);
    } else {  // the largest has 15 bits; exponents count from 127
      const int32_t unit = (bits >> 23) - 14, scale_bits = unit << 23, factor_bits = (254 - unit) << 23;
      memcpy(&scale, &scale_bits, sizeof(scale)), memcpy(&factor, &factor_bits, sizeof(factor));
    }
    if (!finite) scale = __builtin_nanf("");

    const float shift = 12582912.0f;  // 1.5 * 2^23: the low bits of a sum with it are an integer, ties to even
    const auto rounded = [&](Vector values) {
      return (Integers)multiplied_and_added(values, Vector{} + factor, Vector{} + shift) - 0x4b400000;
    };
    alignas(LINE) uint8_t apart[FIXED_BLOCK * sizeof(int16_t)];
    uint8_t* to = panels ? apart : rows.block(blocks, row, block);
    Integers sums = {};
    for (int64_t i = 0; i < blocks.place; i += 2 * WIDTH) {
      const Integers even = finite ? rounded(widened<false>(given + i, 0)) : Integers{};
      const Integers odd = finite ? rounded(widened<true>(given + i, 0)) : Integers{};
      if (scaled.paired()) {
        *reinterpret_cast<Narrow*>(to + i) = lower_halves((even & 0xff) | (odd & 0xff) << 8);
      } else {
        *reinterpret_cast<Integers*>(to + i * sizeof(int16_t)) = (even & 0xffff) | odd << 16;
      }
      sums += even + odd;
    }
    const int64_t of_row = block * rows.together + row;
    const int32_t sum = sum_of_lanes(sums);
    if (!panels) {
      rows.scales[of_row] = scale, rows.sums[of_row] = sum;
      return;
    }
    rows.of_panels[of_row] = OfPanelRow(scaled.number, sum, scale);
#if WIDTH >= 8
    const int64_t steps = blocks.place * rows.each / sizeof(int32_t);
    place.put(block * steps, steps, apart);
#endif
  });
}

// What scales have of a block: of rows, and of outputs. Sums are those with the numbers' offset.
template <Number NUMBER, typename Floats, typename Sums>
INLINE Floats with_block(Floats total, Sums sums, Sums row_sums, Floats row_scales, bool with_zeros, Floats zeros, Floats scales) {
  Floats found = __builtin_convertvector(sums - offset_of(NUMBER) * row_sums, Floats);
  if (with_zeros) {
    if (NUMBER == Number::float4) zeros *= 2.0f;
    found = multiplied_and_added(-zeros, __builtin_convertvector(row_sums, Floats), found);
  }
  return multiplied_and_added(found * row_scales, scales, total);
}

}  // namespace native
