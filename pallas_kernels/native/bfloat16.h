// Products of rows with matrices of bfloat16: in pairs where there are instructions for them, or widened.

#pragma once

#include "floats.h"

namespace native {

#if BFLOAT16_PAIRS
constexpr int64_t FEW_PAIR_TILES = 3;  // of rows, at most, that take turns with each few outputs: more of them are slower so

// `OUTPUTS` outputs, `stride` apart, of R rows, with a block of inputs: a lane takes two at once. What follows is asked for by `ask`,
// beside each 32.
template <int R, typename Ask>
INLINE void multiply_pairs(const uint16_t* weight, int64_t stride, const uint16_t* x, int64_t x_stride, int64_t inputs, const Place& place,
                           const Ask& ask) {
  static_assert(OUTPUTS == 4, "two of two");
  Sum sums[OUTPUTS][R] = {};
  const uint16_t* third = weight + 2 * stride;
  auto multiply_32 = [&](int64_t done, __mmask32 there) __attribute__((always_inline)) {
    ask(done);
    const auto read = [&](const uint16_t* from) { return _mm512_maskz_loadu_epi16(there, from + done); };
    const __m512i pairs[OUTPUTS] = {read(weight), read(weight + stride), read(third), read(third + stride)};
    UNROLLED for (int r = 0; r < R; ++r) {
      const __m512i row = read(x + r * x_stride);
      UNROLLED for (int q = 0; q < OUTPUTS; ++q) asm("vdpbf16ps %2, %1, %0" : "+v"(sums[q][r].part[0]) : "v"(pairs[q]), "v"(row));
    }
  };
  int64_t done = 0;
  for (; done + CHUNK <= inputs; done += CHUNK) multiply_32(done, ~__mmask32(0));
  if (done < inputs) multiply_32(done, (__mmask32(1) << (inputs - done)) - 1);
  add_lanes<R>(sums, place);
}

// A `tile` of bfloat16 as it was given. Outputs behind those of `place` are multiplied, too, and left out; a single one may be there
// `OUTPUTS` times, by a stride of 0.
template <int R, int LINES>
NOT_INLINE void tile_of_pairs(const uint16_t* weight, const uint16_t* following, const uint16_t* x, int64_t stride,
                              int64_t x_stride, int64_t inputs, Place place) {
  multiply_pairs<R>(weight, stride, x, x_stride, inputs, place, [&](int64_t done) __attribute__((always_inline)) {
    prefetch<LINES, CHUNK>(following, done);
  });
}

// `count` outputs, some `OUTPUTS`, one tile after the other: to begin a tile by a call costs it a thirtieth. Each asks for the lines
// [from, to) of as many outputs of `following`.
template <int R>
NOT_INLINE void tiles_of_pairs(const uint16_t* weight, const uint16_t* following, int64_t from, int64_t to, const uint16_t* x,
                               int64_t stride, int64_t inputs, int64_t count, Place place) {
  for (; count > 0; count -= OUTPUTS, weight += OUTPUTS * stride, following += OUTPUTS * stride, place.out += OUTPUTS) {
    ask_for(following, stride, from, to);
    multiply_pairs<R>(weight, stride, x, stride, inputs, Place{place.out, place.stride, OUTPUTS, place.begin}, [](int64_t) {});
  }
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

// The same of so many rows that tiles of them take turns with the outputs that are multiplied together; of those there are whole tiles.
static void outputs_of_many_rows(const Product& product, const Split& rows, int64_t step, int64_t first, int64_t last) {
  static_assert(ROWS == 6 && FEW_PAIR_TILES == 3, "of more tiles than that each has four rows at least");
  const uint16_t* weight = static_cast<const uint16_t*>(product.weight);
  const uint16_t* x = static_cast<const uint16_t*>(product.x);
  const int64_t stride = product.inputs;
  for (int64_t group = first; group < last; group += TOGETHER) {
    const int64_t end = smaller(last, group + TOGETHER);
    for (int64_t block = 0; block < product.inputs; block += step) {
      const int64_t inputs = smaller(step, product.inputs - block), next = block + step;
      const bool ends = next >= product.inputs;
      const uint16_t* following = ends ? weight + end * stride : weight + group * stride + next;
      const int64_t lines = (ends ? step : smaller(step, product.inputs - next)) * int64_t(sizeof(uint16_t)) / LINE;
      for (int64_t part = 0; part < rows.count; ++part) {
        const int64_t row = rows.start(part);
        const int64_t from = lines * part / rows.count, to = lines * (part + 1) / rows.count;
        const uint16_t* matrix = weight + group * stride + block;
        const Place place{product.out + row * product.outputs + group, product.outputs, OUTPUTS, block == 0};
#define TILES(R) \
  case R: tiles_of_pairs<R>(matrix, following, from, to, x + row * stride + block, stride, inputs, end - group, place); break;
        switch (rows.size(part)) { TILES(4) TILES(5) TILES(6) }
#undef TILES
      }
    }
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
  if (rows.count > FEW_PAIR_TILES) {
    const int64_t whole = last - (last - first) % OUTPUTS;
    outputs_of_many_rows(product, rows, step, first, whole);
    first = whole;
  }
  for (int64_t output = first, count; output < last; output += count) {
    count = output + OUTPUTS <= last ? OUTPUTS : 1;
    for (int64_t block = 0; block < product.inputs; block += step) {
      const int64_t inputs = smaller(step, product.inputs - block);
      const uint16_t* matrix = weight + output * stride + block;
      for (int64_t part = 0; part < rows.count; ++part) {
        const int64_t row = rows.start(part);
        const uint16_t* from = x + row * stride + block;
        const Place place{product.out + row * product.outputs + output, product.outputs, count, block == 0};
        with_lines<OUTPUTS>(lines_ahead(rows.count, part, OUTPUTS), [&](auto lines) {
          const uint16_t* following = weight + (output + OUTPUTS) * stride + OUTPUTS * block + part * lines.value * inputs;
#define TILE(R) \
  case R: return tile_of_pairs<R, lines.value>(matrix, following, from, count == 1 ? 0 : stride, stride, inputs, place);
          switch (rows.size(part)) { TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) }
#undef TILE
        });
      }
    }
  }
}

static void (*const prepare_bfloat16)(const Product&, int64_t) = nullptr;  // rows are multiplied as they lie
static void (*const prepare_wide_bfloat16)(const Product&, int64_t) = nullptr;
constexpr int64_t BFLOAT16_OUTPUTS = MOST_OUTPUTS;  // of a task
#else
static constexpr auto prepare_bfloat16 = prepare_floats<uint16_t>;
static constexpr auto prepare_wide_bfloat16 = prepare_floats<uint16_t, true>;
static constexpr auto outputs_of_bfloat16 = outputs_of_floats<uint16_t>;
constexpr int64_t BFLOAT16_OUTPUTS = WIDENED_OUTPUTS;
#endif

}  // namespace native
