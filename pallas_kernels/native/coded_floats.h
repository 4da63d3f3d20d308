// Products with matrices in 12 bits a number where bfloat16 is widened. Few rows are multiplied with numbers as they are decoded; for more
// some outputs are decoded into a cache, and multiplied there as others are where they lie.

#pragma once

#include "decoding.h"

namespace native {

#if WIDTH == 16 && !BFLOAT16_PAIRS
constexpr int CODED_OUTPUTS = 2, CODED_ROWS = 8;  // of a tile of few rows: so many products hide that numbers are decoded for them
constexpr int FEWEST_ROWS = 4;                     // of a tile of more rows, which are parted evenly

inline int64_t rows_of_coded(int64_t rows) { return rows <= CODED_ROWS ? CODED_ROWS : ROWS; }  // of a tile, at most

static void prepare_coded(const Product& product, int64_t part) {
  prepare_tile<uint16_t>(product, rows_of_coded(product.rows), part);
}

// Inputs [begin, end) of two outputs, of R rows; where `place` has one, the second is left out. In each half of a piece's time it asks for
// half of what it reads in that of `following`.
template <int R, typename Source>
NOT_INLINE void tile_of_coded(Source a, Source b, const uint8_t* following, const float* x, int64_t begin, int64_t end, const Place& place) {
  static_assert(CODED_OUTPUTS == 2, "those of two rows are added together");
  Vector sums[CODED_OUTPUTS][R] = {};
  const __m512i upper[] = {a.upper(), b.upper()};
  for_halves(begin, end, [&](int64_t input, bool second) __attribute__((always_inline)) {
    UNROLLED for (int64_t line = 0; line < PIECE_BYTES / LINE; ++line) __builtin_prefetch(following + line * LINE, 0, 2);
    following += PIECE_BYTES;
    __m512i pairs[CODED_OUTPUTS][2];
    a.read(input, second, upper[0], pairs[0]), b.read(input, second, upper[1], pairs[1]);
    UNROLLED for (int sixteen = 0; sixteen < HALF_PIECE / LANES; ++sixteen) {
      Vector numbers[CODED_OUTPUTS];
      UNROLLED for (int q = 0; q < CODED_OUTPUTS; ++q) {
        const Words both = (Words)pairs[q][sixteen / 2];
        numbers[q] = (Vector)(sixteen % 2 == 0 ? both << 16 : both & 0xffff0000u);
      }
      UNROLLED for (int r = 0; r < R; ++r, x += LANES) {
        const Vector row = *reinterpret_cast<const Vector*>(x);
        UNROLLED for (int q = 0; q < CODED_OUTPUTS; ++q) add_product<true>(sums[q][r], numbers[q], row);
      }
    }
  });
  UNROLLED for (int r = 0; r < R; r += 2) {
    const int next = r + 1 < R ? r + 1 : r;
    const Quad added = lanes_added((__m512)sums[0][r], (__m512)sums[1][r], (__m512)sums[0][next], (__m512)sums[1][next]);
    put_two(added, place, r, next);
  }
}

// Outputs [first, last) of few rows, two after the other. What follows a group is asked for in the order in which it lies.
static void outputs_of_few_rows(const Product& product, const CodedMatrix& matrix, int64_t step, int64_t first, int64_t last) {
  static_assert(GROUP % CODED_OUTPUTS == 0, "only the last group ends with one");
  alignas(LINE) uint16_t numbers[CODED_OUTPUTS][BLOCK];
  for (int64_t group = first; group < last; group += GROUP) {
    const int64_t group_end = smaller(last, group + GROUP);
    const uint8_t* following = matrix.row(group_end);
    for (int64_t block = 0; block < product.inputs; block += step) {
      const int64_t inputs = smaller(step, product.inputs - block), end = block + inputs;
      const float* x = product.prepared_block(block);
      for (int64_t output = group; output < group_end; output += CODED_OUTPUTS) {
        const int64_t count = smaller(CODED_OUTPUTS, group_end - output), other = output + count - 1;
        const bool coded = all_coded(matrix, output) && all_coded(matrix, other);
        if (!coded) decode(matrix, output, block, end, numbers[0]), decode(matrix, other, block, end, numbers[1]);
        const Place place{product.out + output, product.outputs, count, block == 0};
#define TILE(R)                                                                                                        \
  case R:                                                                                                              \
    if (coded) tile_of_coded<R>(Codes{matrix.row(output)}, Codes{matrix.row(other)}, following, x, block, end, place); \
    else tile_of_coded<R>(Decoded{numbers[0], block}, Decoded{numbers[1], block}, following, x, block, end, place);    \
    break;
        switch (product.rows) { TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) TILE(7) TILE(8) }
#undef TILE
        following += CODED_OUTPUTS * inputs / PIECE * PIECE_BYTES;
      }
    }
  }
}

// Outputs [first, last) of more rows, whose tiles take turns with each few outputs. The first ones ask for what follows: a line each of
// those that `OUTPUTS` outputs have for 32 inputs.
static void outputs_of_few_tiles(const Product& product, const CodedMatrix& matrix, int64_t step, int64_t first, int64_t last) {
  constexpr int64_t LINES = OUTPUTS * CHUNK * PIECE_BYTES / PIECE / LINE;
  alignas(LINE) uint16_t numbers[OUTPUTS * BLOCK];
  const Split rows(product.rows, ROWS);
  for (int64_t output = first; output < last; output += OUTPUTS) {
    const int64_t count = smaller(OUTPUTS, last - output);
    const uint8_t* following = matrix.row(output + count);
    for (int64_t block = 0; block < product.inputs; block += step) {
      const int64_t inputs = smaller(step, product.inputs - block);
      for (int64_t q = 0; q < count; ++q) decode(matrix, output + q, block, block + inputs, numbers + q * step);
      for (int64_t part = 0; part < rows.count; ++part) {
        const int64_t row = rows.start(part);
        const auto multiply = [&](auto lines) {
          Given<uint16_t, lines.value> given;
          for (int64_t q = 0; q < OUTPUTS; ++q) given.outputs[q] = numbers + smaller(q, count - 1) * step;
          given.following = reinterpret_cast<const uint16_t*>(following);
          following += lines.value * inputs / CHUNK * LINE;
          tiles<FEWEST_ROWS>(rows.size(part), given, product.prepared_block(block) + row * padded(inputs), inputs,
                             Place{product.out + row * product.outputs + output, product.outputs, count, block == 0});
        };
        if (part < LINES) multiply(std::integral_constant<int, 1>());
        else multiply(std::integral_constant<int, 0>());
      }
    }
  }
}

// Inputs [begin, end) of an output as float32, in its places of a panel (`Packed`).
NOT_INLINE void decode_widened(const CodedMatrix& matrix, int64_t output, int64_t begin, int64_t end, float* to) {
  Head head;
  memcpy(&head, matrix.row(output), sizeof(head));
  if (head.others == PLAIN) {
    alignas(LINE) uint16_t numbers[BLOCK];
    decode(matrix, output, begin, end, numbers);
    pack(numbers, 0, 1, end - begin, to, OUTPUTS);
    return;
  }
  const Codes codes{matrix.row(output)};
  const __m512i upper = codes.upper();
  float* place = to;
  for_halves(begin, end, [&](int64_t input, bool second) __attribute__((always_inline)) {
    __m512i pairs[2];
    codes.read(input, second, upper, pairs);
    UNROLLED for (int i = 0; i < 2; ++i, place += OUTPUTS * CHUNK) {
      const Words both = (Words)pairs[i];
      *reinterpret_cast<Vector*>(place) = (Vector)(both << 16);
      *reinterpret_cast<Vector*>(place + OUTPUTS * LANES) = (Vector)(both & 0xffff0000u);
    }
  });
  for (int i = 0; i < head.others; ++i) {
    const int64_t own = int64_t(head.other[i] >> 8) - begin;
    if (own < 0 || own >= end - begin) continue;
    float& number = to[(own / CHUNK * 2 + own % 2) * OUTPUTS * LANES + own % CHUNK / 2];
    uint32_t bits;
    memcpy(&bits, &number, sizeof(bits));
    bits = (bits & 0x00ff0000u) | (head.other[i] & 0xff) << 24;
    memcpy(&number, &bits, sizeof(bits));
  }
}

// Outputs [first, last) of many rows, widened.
static void outputs_of_many_rows(const Product& product, const CodedMatrix& matrix, int64_t step, int64_t first, int64_t last) {
  alignas(LINE) float panel[WIDENED_OUTPUTS * BLOCK];
  for (int64_t block = 0; block < product.inputs; block += step) {
    const int64_t inputs = smaller(step, product.inputs - block);
    for (int64_t output = first; output < last; ++output) {
      const int64_t own = output - first;
      decode_widened(matrix, output, block, block + inputs, panel + own / OUTPUTS * OUTPUTS * padded(inputs) + own % OUTPUTS * LANES);
    }
    multiply_panel<FEWEST_ROWS>(product, Split(product.rows, ROWS), panel, block, inputs, first, last);
  }
}

static void outputs_of_coded(const Product& product, int64_t first, int64_t last) {
  const CodedMatrix matrix{static_cast<const uint8_t*>(product.weight), product.outputs, product.inputs};
  const auto of_more = product.rows <= FEW_TILES * ROWS ? outputs_of_few_tiles : outputs_of_many_rows;
  const auto outputs = product.rows <= CODED_ROWS ? outputs_of_few_rows : of_more;
  outputs(product, matrix, block_of(product.inputs, BLOCK), first, last);
}
#endif

}  // namespace native
