// Products of rows with matrices of bfloat16: in pairs where there are instructions for them, or widened.

#pragma once

#include "floats.h"

namespace native {

#if BFLOAT16_PAIRS
// A `tile` of bfloat16 as it was given, outputs `stride` apart and rows `x_stride`: a lane takes two inputs at once.
template <int R, int LINES>
NOT_INLINE void tile_of_pairs(const uint16_t* weight, const uint16_t* following, const uint16_t* x, int64_t stride,
                              int64_t x_stride, int64_t inputs, Place place) {
  Sum sums[OUTPUTS][R] = {};
  const uint16_t* outputs[OUTPUTS];
  for (int q = 0; q < OUTPUTS; ++q) outputs[q] = weight + smaller(q, place.outputs - 1) * stride;
  auto multiply_32 = [&](int64_t done, __mmask32 there) __attribute__((always_inline)) {
    prefetch<LINES, CHUNK>(following, done);
    __m512i pairs[OUTPUTS];
    UNROLLED for (int q = 0; q < OUTPUTS; ++q) pairs[q] = _mm512_maskz_loadu_epi16(there, outputs[q] + done);
    UNROLLED for (int r = 0; r < R; ++r) {
      const __m512i row = _mm512_maskz_loadu_epi16(there, x + r * x_stride + done);
      UNROLLED for (int q = 0; q < OUTPUTS; ++q) asm("vdpbf16ps %2, %1, %0" : "+v"(sums[q][r].part[0]) : "v"(pairs[q]), "v"(row));
    }
  };
  int64_t done = 0;
  for (; done + CHUNK <= inputs; done += CHUNK) multiply_32(done, ~__mmask32(0));
  if (done < inputs) multiply_32(done, (__mmask32(1) << (inputs - done)) - 1);
  add_lanes<R>(sums, place);
}

// One output of R rows, with a block of inputs.
template <int R>
NOT_INLINE void output_of_pairs(const uint16_t* weight, const uint16_t* x, int64_t x_stride, int64_t inputs, const Place& place) {
  static_assert(R <= ROWS_IN_TURN && ROWS_IN_TURN == 4, "their lanes are added together");
  Vector sums[ROWS_IN_TURN] = {};
  auto multiply_32 = [&](int64_t done, __mmask32 there) __attribute__((always_inline)) {
    prefetch<R >= ROWS_THAT_ASK, CHUNK>(weight + BEHIND / sizeof(uint16_t), done);
    const __m512i pairs = _mm512_maskz_loadu_epi16(there, weight + done);
    UNROLLED for (int r = 0; r < R; ++r) {
      const __m512i row = _mm512_maskz_loadu_epi16(there, x + r * x_stride + done);
      asm("vdpbf16ps %2, %1, %0" : "+v"(sums[r]) : "v"(pairs), "v"(row));
    }
  };
  int64_t done = 0;
  for (; done + CHUNK <= inputs; done += CHUNK) multiply_32(done, ~__mmask32(0));
  if (done < inputs) multiply_32(done, (__mmask32(1) << (inputs - done)) - 1);
  const Quad added = lanes_added((__m512)sums[0], (__m512)sums[1], (__m512)sums[2], (__m512)sums[3]);
  for (int r = 0; r < R; ++r) {
    float& out = place.out[r * place.stride];
    out = place.begin ? added[r] : out + added[r];
  }
}

// Outputs [first, last) of all rows, a few outputs after the other.
static void outputs_of_bfloat16(const Product& product, int64_t first, int64_t last) {
  const uint16_t* weight = static_cast<const uint16_t*>(product.weight);
  const uint16_t* x = static_cast<const uint16_t*>(product.x);
  const int64_t stride = product.inputs, step = block_of(product.inputs, PAIR_BLOCK);
  for (int64_t output = first; product.rows <= ROWS_IN_TURN && output < last; ++output) {
    for (int64_t block = 0; block < product.inputs; block += step) {
      const int64_t inputs = smaller(step, product.inputs - block);
      const uint16_t* from = weight + output * stride + block;
      const Place place{product.out + output, product.outputs, 1, block == 0};
#define OUTPUT(R) case R: output_of_pairs<R>(from, x + block, stride, inputs, place); break;
      switch (product.rows) { OUTPUT(1) OUTPUT(2) OUTPUT(3) OUTPUT(4) }
#undef OUTPUT
    }
  }
  if (product.rows <= ROWS_IN_TURN) return;
  const Split rows(product.rows, ROWS);
  for (int64_t output = first; output < last; output += OUTPUTS) {
    for (int64_t block = 0; block < product.inputs; block += step) {
      const int64_t inputs = smaller(step, product.inputs - block);
      const uint16_t* matrix = weight + output * stride + block;
      for (int64_t part = 0; part < rows.count; ++part) {
        const int64_t row = rows.start(part);
        const uint16_t* from = x + row * stride + block;
        const Place place{product.out + row * product.outputs + output, product.outputs, smaller(OUTPUTS, last - output),
                          block == 0};
        with_lines<OUTPUTS>(lines_ahead(rows.count, part, OUTPUTS), [&](auto lines) {
          const uint16_t* following = weight + (output + OUTPUTS) * stride + OUTPUTS * block + part * lines.value * inputs;
#define TILE(R) case R: return tile_of_pairs<R, lines.value>(matrix, following, from, stride, stride, inputs, place);
          switch (rows.size(part)) { TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) }
#undef TILE
        });
      }
    }
  }
}

static void (*const prepare_bfloat16)(const Product&, int64_t) = nullptr;  // rows are multiplied as they lie
static void (*const prepare_wide_bfloat16)(const Product&, int64_t) = nullptr;
#else
static constexpr auto prepare_bfloat16 = prepare_floats<uint16_t>;
static constexpr auto prepare_wide_bfloat16 = prepare_floats<uint16_t, true>;
static constexpr auto outputs_of_bfloat16 = outputs_of_floats<uint16_t>;
#endif

}  // namespace native
