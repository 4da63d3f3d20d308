// Products of rows of bfloat16 with matrices of int8, int4 or float4 and scales, in fixed point.
//
// A row's inputs are made integers of 16 bits, block by block, over a power of two: exact where they are not below a 128th of the
// block's largest, and never off by more than its 65,536th. With the numbers of the matrix, which are integers, they are summed in
// int32, and a block's sum is converted, takes its zero and its scales, and is added to those of the blocks before in float32. So
// neither instructions nor threads nor the rows and outputs beside it change a bit of a row, and no number of the matrix is rounded.
// Where a row has what is not finite, all its outputs are NaN.

#pragma once

#include "eight_sums.h"
#include "factors.h"
#include "pair_panel.h"

namespace native {

typedef float EightFloats __attribute__((vector_size(32), aligned(4), may_alias));

// weight [outputs, inputs], or of 4 bits [outputs / 2, inputs], lines of two outputs: 2 j in the low bits of a byte. With `packed` that
// is [outputs / 16, inputs / 4, 8, 4], and of `group` inputs there are fours, or all. scales and zeros [groups, outputs] of type
// `factor`; zeros may be null. No groups: numbers are what they are.
struct Scaled {
  Number number;
  bool packed;
  int64_t group, groups;
  Factor factor;
  const void *scales, *zeros;

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
  int64_t inputs, group, place, count;

  Blocks(int64_t inputs, const Scaled& scaled)
      : inputs(inputs),
        group(scaled.groups <= 1 ? larger(1, inputs) : scaled.group),
        place((smaller(group, FIXED_BLOCK) + CHUNK - 1) / CHUNK * CHUNK),
        count(inputs / group * of_inputs(group) + of_inputs(inputs % group)) {}

  static int64_t of_inputs(int64_t some) { return (some + FIXED_BLOCK - 1) / FIXED_BLOCK; }

  // Calls `f(block, number of its group, first input, inputs)` for each in turn.
  template <typename F>
  INLINE_MEMBER void for_each(const F& f) const {
    int64_t block = 0, number = 0;
    for (int64_t first = 0, end; first < inputs; first = end, ++number) {
      end = smaller(inputs, first + group);
      for (int64_t start = first; start < end; start += FIXED_BLOCK) f(block++, number, start, smaller(FIXED_BLOCK, end - start));
    }
  }
};

// To more than four rows a panel pays.
inline bool by_panels(int64_t rows) { return WIDTH >= 8 && rows > FIXED_ROWS; }

// Fewer have numbers of 4 bits in lanes (`fixed_lanes.h`), which cost one row more to bring about than they save unless blocks are short.
inline bool by_lanes(int64_t rows, const Scaled& scaled, const Blocks& blocks) {
  return WIDTH >= 8 && scaled.paired() && rows <= FIXED_ROWS && (scaled.packed || rows > 1 || blocks.place < 128);
}

// Rows of 16 bits, `place` for each block, as panels take them if they are multiplied so; behind them scales and sums of each block, row by row.
struct FixedRows {
  int64_t stride, together;
  int16_t* values;
  float* scales;
  int32_t* sums;

  FixedRows(const Product& product, const Blocks& blocks)
      : stride(blocks.count * blocks.place),
        together((product.rows + FIXED_ROWS - 1) / FIXED_ROWS * FIXED_ROWS),
        values(static_cast<int16_t*>(product.prepared)),
        scales(reinterpret_cast<float*>(values + product.rows * stride)),
        sums(reinterpret_cast<int32_t*>(scales + blocks.count * together)) {}
};

inline int64_t fixed_bytes(int64_t rows, int64_t inputs, const Scaled& scaled) {
  const Blocks blocks(inputs, scaled);
  return blocks.count * ((rows + FIXED_ROWS - 1) * 2 * sizeof(float) + rows * blocks.place * sizeof(int16_t));
}

#if WIDTH >= 8
// Of four inputs of a row the second and the third change places, as `fixed_lanes.h` multiplies them: low bytes of two words first.
INLINE void order_for_lanes(int16_t* row, int64_t count) {
  const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  for (int64_t i = 0; i < count; i += 16) {
    __m256i* some = reinterpret_cast<__m256i*>(row + i);
    _mm256_storeu_si256(some, _mm256_shuffle_epi8(_mm256_loadu_si256(some), order));
  }
}
#endif

static void prepare_fixed(const Product& product, const Scaled& scaled, int64_t row) {
  const Blocks blocks(product.inputs, scaled);
  const FixedRows rows(product, blocks);
  const uint16_t* from = static_cast<const uint16_t*>(product.x) + row * product.inputs;
  blocks.for_each([&](int64_t block, int64_t, int64_t start, int64_t inputs) {
    uint16_t given[FIXED_BLOCK] = {};
    memcpy(given, from + start, inputs * sizeof(uint16_t));
    Integers most = {};  // as integers, magnitudes have the order of their values, and NaN comes last
    const auto compare = [&](Vector values) {
      const Integers magnitudes = (Integers)values & 0x7fffffff;
      most = magnitudes > most ? magnitudes : most;
    };
    for (int64_t i = 0; i < blocks.place; i += 2 * WIDTH) compare(widened<false>(given + i, 0)), compare(widened<true>(given + i, 0));
    int32_t bits = 0;
    for (int i = 0; i < WIDTH; ++i) bits = most[i] > bits ? most[i] : bits;

    // The largest has 15 bits. Exponents count from 127; where the power of two would be too small for a float, it is larger.
    const int32_t exponent = bits >> 23, least = 16;
    const bool finite = exponent != 255;
    const int32_t unit = (exponent > least ? exponent : least) - 14, half = scaled.number == Number::float4;
    const int32_t scale_bits = finite ? (unit - half) << 23 : 0x7fc00000, factor_bits = (254 - unit) << 23;
    float factor;
    memcpy(&factor, &factor_bits, sizeof(factor));
    memcpy(rows.scales + block * rows.together + row, &scale_bits, sizeof(scale_bits));
    const float shift = 12582912.0f;  // 1.5 * 2^23: the low bits of a sum with it are an integer, ties to even
    const auto rounded = [&](Vector values) { return (Integers)(values * factor + shift) - 0x4b400000; };
    int16_t apart[FIXED_BLOCK];
    int16_t* to = by_panels(product.rows) ? apart : rows.values + row * rows.stride + block * blocks.place;
    Integers sums = {};
    for (int64_t i = 0; i < blocks.place; i += 2 * WIDTH) {
      const Integers even = finite ? rounded(widened<false>(given + i, 0)) : Integers{};
      const Integers odd = finite ? rounded(widened<true>(given + i, 0)) : Integers{};
      *reinterpret_cast<Integers*>(to + i) = (even & 0xffff) | (odd << 16);
      sums += even + odd;
    }
    int32_t sum = 0;
    for (int i = 0; i < WIDTH; ++i) sum += sums[i];
    rows.sums[block * rows.together + row] = sum;
#if WIDTH >= 8
    const int64_t steps = blocks.place / 2;
    if (scaled.packed || by_lanes(product.rows, scaled, blocks)) order_for_lanes(to, blocks.place);
    if (to == apart) PairRows(product.rows, rows.values).put(row, block * steps, steps, 0, apart, steps);
#endif
  });
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
