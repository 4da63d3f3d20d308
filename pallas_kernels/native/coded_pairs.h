// Products with matrices in 12 bits a number where bfloat16 is multiplied in pairs: of few rows as it is decoded.

#pragma once

#include "decoding.h"

namespace native {

#if BFLOAT16_PAIRS
constexpr int CODED_OUTPUTS = 2, CODED_ROWS = 8;  // of a tile, at most: so many products hide that numbers are decoded for them
constexpr int64_t BEHIND_CODED = 6144;             // what it asks for: so many bytes behind what it reads
constexpr int64_t SOME_ROWS = 16;                  // as many at most are multiplied by such tiles; more with numbers that were decoded

// Outputs that are decoded together, for so many tiles of rows: with few tiles those and one tile's rows stay in the first cache, with many
// all of a task are multiplied before the next tile's rows are read.
constexpr int64_t decoded_together(int64_t tiles) { return tiles <= 4 ? OUTPUTS : tiles <= 6 ? 2 * OUTPUTS : MOST_OUTPUTS; }

// Inputs [begin, end) of one output, of R rows.
// What follows is not asked for: to ask costs a Zen 4 up to a fifth of the bandwidth (`ROWS_THAT_ASK`), with four rows as with one.
template <int R, typename Source>
NOT_INLINE void output_of_coded(Source source, const uint16_t* x, int64_t stride, int64_t begin, int64_t end, const Place& place) {
  static_assert(R <= ROWS_IN_TURN && ROWS_IN_TURN == 4, "their lanes are added together");
  Vector sums[ROWS_IN_TURN] = {};
  const __m512i upper = source.upper();
  for_halves(begin, end, [&](int64_t input, bool second) __attribute__((always_inline)) {
    __m512i pairs[2];
    source.read(input, second, upper, pairs);
    UNROLLED for (int i = 0; i < 2; ++i) {
      UNROLLED for (int r = 0; r < R; ++r) {
        const __m512i_u& row = *reinterpret_cast<const __m512i_u*>(x + r * stride + input + CHUNK * i);
        asm("vdpbf16ps %2, %1, %0" : "+v"(sums[r]) : "v"(pairs[i]), "m"(row));
      }
    }
  });
  const Quad added = lanes_added((__m512)sums[0], (__m512)sums[1], (__m512)sums[2], (__m512)sums[3]);
  for (int r = 0; r < R; ++r) put(added[r], place, r, 0);
}

// The same of two outputs; where `place` has one, the second is left out. In each half of a piece's time it asks for half of what it reads
// in that of `following`.
template <int R, typename Source>
NOT_INLINE void tile_of_coded(Source a, Source b, const uint8_t* following, const uint16_t* x, int64_t stride, int64_t begin, int64_t end,
                              const Place& place) {
  static_assert(CODED_OUTPUTS == 2, "those of two rows are added together");
  Vector sums[CODED_OUTPUTS][R] = {};
  const __m512i upper[] = {a.upper(), b.upper()};
  for_halves(begin, end, [&](int64_t input, bool second) __attribute__((always_inline)) {
    UNROLLED for (int64_t line = 0; line < PIECE_BYTES / LINE; ++line) __builtin_prefetch(following + line * LINE, 0, 2);
    following += PIECE_BYTES;
    __m512i pairs[CODED_OUTPUTS][2];
    a.read(input, second, upper[0], pairs[0]), b.read(input, second, upper[1], pairs[1]);
    UNROLLED for (int i = 0; i < 2; ++i) {
      UNROLLED for (int r = 0; r < R; ++r) {
        const __m512i row = _mm512_loadu_si512(x + r * stride + input + CHUNK * i);
        UNROLLED for (int q = 0; q < CODED_OUTPUTS; ++q) asm("vdpbf16ps %2, %1, %0" : "+v"(sums[q][r]) : "v"(pairs[q][i]), "v"(row));
      }
    }
  });
  UNROLLED for (int r = 0; r < R; r += 2) {
    const int next = r + 1 < R ? r + 1 : r;
    const Quad added = lanes_added((__m512)sums[0][r], (__m512)sums[1][r], (__m512)sums[0][next], (__m512)sums[1][next]);
    put_two(added, place, r, next);
  }
}

// Outputs [first, last) of few rows, one after the other.
static void outputs_of_few_rows(const Product& product, const CodedMatrix& matrix, int64_t first, int64_t last) {
  alignas(LINE) uint16_t numbers[PAIR_BLOCK];
  const uint16_t* x = static_cast<const uint16_t*>(product.x);
  const int64_t inputs = product.inputs, step = block_of(inputs, PAIR_BLOCK);
  for (int64_t output = first; output < last; ++output) {
    const bool coded = all_coded(matrix, output);
    for (int64_t block = 0; block < inputs; block += step) {
      const int64_t end = smaller(block + step, inputs);
      const Place place{product.out + output, product.outputs, 1, block == 0};
      if (!coded) decode(matrix, output, block, end, numbers);
#define OUTPUT(R)                                                                                            \
  case R:                                                                                                     \
    if (coded) output_of_coded<R>(Codes{matrix.row(output)}, x, inputs, block, end, place);                       \
    else output_of_coded<R>(Decoded{numbers, block}, x, inputs, block, end, place);                           \
    break;
      switch (product.rows) { OUTPUT(1) OUTPUT(2) OUTPUT(3) OUTPUT(4) }
#undef OUTPUT
    }
  }
}

// Outputs [first, last) of more rows, two after the other, each decoded for each tile of rows.
static void outputs_of_some_rows(const Product& product, const CodedMatrix& matrix, int64_t first, int64_t last) {
  alignas(LINE) uint16_t numbers[CODED_OUTPUTS][PAIR_BLOCK];
  const uint16_t* x = static_cast<const uint16_t*>(product.x);
  const int64_t inputs = product.inputs, step = block_of(inputs, PAIR_BLOCK);
  const Split rows(product.rows, CODED_ROWS);
  for (int64_t output = first; output < last; output += CODED_OUTPUTS) {
    const int64_t count = smaller(CODED_OUTPUTS, last - output), other = output + count - 1;
    const bool coded = all_coded(matrix, output) && all_coded(matrix, other);
    const uint8_t* following = matrix.row(output) + BEHIND_CODED;
    for (int q = 0; q < CODED_OUTPUTS; ++q, following += sizeof(Head)) __builtin_prefetch(following, 0, 2);
    for (int64_t block = 0; block < inputs; block += step) {
      const int64_t end = smaller(block + step, inputs);
      if (!coded) decode(matrix, output, block, end, numbers[0]), decode(matrix, other, block, end, numbers[1]);
      for (int64_t part = 0; part < rows.count; ++part) {
        const int64_t row = rows.start(part);
        const uint16_t* own = x + row * inputs;
        const Place place{product.out + row * product.outputs + output, product.outputs, count, block == 0};
#define TILE(R)                                                                                                                   \
  case R:                                                                                                                         \
    if (coded) tile_of_coded<R>(Codes{matrix.row(output)}, Codes{matrix.row(other)}, following, own, inputs, block, end, place);  \
    else tile_of_coded<R>(Decoded{numbers[0], block}, Decoded{numbers[1], block}, following, own, inputs, block, end, place);     \
    break;
        switch (rows.size(part)) { TILE(4) TILE(5) TILE(6) TILE(7) TILE(8) }
#undef TILE
      }
      following += CODED_OUTPUTS * (end - block) / PIECE * PIECE_BYTES;
    }
  }
}

// As `tiles_of_pairs`, of `count` outputs that were decoded, `step` numbers apart; it asks for lines of those that follow, `behind`
// bytes apart.
template <int R>
NOT_INLINE void tiles_of_decoded(const uint16_t* numbers, int64_t step, const uint8_t* following, int64_t behind, int64_t from, int64_t to,
                                 const uint16_t* x, int64_t stride, int64_t inputs, int64_t count, Place place) {
  for (; count > 0; count -= OUTPUTS, numbers += OUTPUTS * step, following += OUTPUTS * behind, place.out += OUTPUTS) {
    ask_for(following, behind, from, to);
    const Place own{place.out, place.stride, smaller(OUTPUTS, count), place.begin};
    multiply_pairs<R>(numbers, step, x, stride, inputs, own, [](int64_t) {});
  }
}

// Outputs [first, last) of more rows: some are decoded into a cache, for tiles of rows in turn.
static void outputs_of_more_rows(const Product& product, const CodedMatrix& matrix, int64_t first, int64_t last) {
  alignas(LINE) uint16_t numbers[MOST_OUTPUTS * PAIR_BLOCK];
  const uint16_t* x = static_cast<const uint16_t*>(product.x);
  const int64_t step = block_of(product.inputs, PAIR_BLOCK), behind = matrix.row_bytes();
  const Split rows(product.rows, ROWS);
  const int64_t together = decoded_together(rows.count);
  for (int64_t group = first; group < last; group += together) {
    const int64_t end = smaller(last, group + together);
    for (int64_t block = 0; block < product.inputs; block += step) {
      const int64_t inputs = smaller(step, product.inputs - block), next = block + step;
      const bool ends = next >= product.inputs;
      for (int64_t output = group; output < end; ++output) decode(matrix, output, block, block + inputs, numbers + (output - group) * step);
      const uint8_t* following = matrix.row(ends ? end : group) + (ends ? 0 : sizeof(Head) + next / PIECE * PIECE_BYTES);
      const int64_t lines = (ends ? step : smaller(step, product.inputs - next)) * PIECE_BYTES / PIECE / LINE + 1;
      for (int64_t part = 0; part < rows.count; ++part) {
        const int64_t row = rows.start(part);
        const int64_t from = lines * part / rows.count, to = lines * (part + 1) / rows.count;
        const Place place{product.out + row * product.outputs + group, product.outputs, OUTPUTS, block == 0};
        const uint16_t* own = x + row * product.inputs + block;
#define TILES(R) \
  case R: tiles_of_decoded<R>(numbers, step, following, behind, from, to, own, product.inputs, inputs, end - group, place); break;
        switch (rows.size(part)) { TILES(4) TILES(5) TILES(6) }
#undef TILES
      }
    }
  }
}

static void (*const prepare_coded)(const Product&, int64_t) = nullptr;  // rows are multiplied as they lie
inline int64_t rows_of_coded(int64_t) { return ROWS; }

static void outputs_of_coded(const Product& product, int64_t first, int64_t last) {
  static_assert(ROWS_IN_TURN == 4 && CODED_ROWS == 8 && ROWS == 6, "of tiles there are those of so many rows");
  const CodedMatrix matrix{static_cast<const uint8_t*>(product.weight), product.outputs, product.inputs};
  const auto outputs = product.rows <= ROWS_IN_TURN ? outputs_of_few_rows : product.rows <= SOME_ROWS ? outputs_of_some_rows : outputs_of_more_rows;
  outputs(product, matrix, first, last);
}
#endif

}  // namespace native
