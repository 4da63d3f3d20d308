// Products of rows with matrices in 12 bits a number (`coding.h`): bits are those of the plain matrix, a quarter less is read.

#pragma once

#include "coding.h"
#include "product.h"

namespace native {

#if BFLOAT16_PAIRS
constexpr int64_t FEW_DECODED = 4;  // tiles of rows, at most, for which outputs that are multiplied together stay in the first cache

typedef Coded<const uint8_t> CodedMatrix;

INLINE __m512i codes_of(const uint8_t* row) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row)));
}

// 64 of a piece's numbers, in order.
INLINE void decode_half(const uint8_t* piece, __m512i upper, bool second, __m512i& first_32, __m512i& next_32) {
  const __m512i codes = _mm512_loadu_si512(piece), lower = _mm512_loadu_si512(piece + (second ? PIECE : HALF_PIECE));
  const __m512i four = _mm512_and_si512(second ? _mm512_srli_epi16(codes, 4) : codes, _mm512_set1_epi8(15));
  const __m512i found = _mm512_shuffle_epi8(upper, four);
  first_32 = _mm512_unpacklo_epi8(lower, found), next_32 = _mm512_unpackhi_epi8(lower, found);
}

// Inputs [begin, end), whole halves of pieces, of an output as bfloat16.
NOT_INLINE void decode(const CodedMatrix& matrix, int64_t output, int64_t begin, int64_t end, uint16_t* to) {
  Head head;
  memcpy(&head, matrix.row(output), sizeof(head));
  const uint8_t* numbers = matrix.numbers(output);
  if (head.others == PLAIN) {
    const int64_t fitting = smaller(larger(matrix.fitting(), begin), end);
    memcpy(to, numbers + begin * sizeof(*to), (fitting - begin) * sizeof(*to));
    memcpy(to + fitting - begin, matrix.rest(output) + (fitting - matrix.fitting()) * sizeof(*to), (end - fitting) * sizeof(*to));
    return;
  }
  const __m512i upper = codes_of(matrix.row(output));
  for (int64_t input = begin; input < end; input += HALF_PIECE) {
    __m512i first, next;
    decode_half(numbers + input / PIECE * PIECE_BYTES, upper, input % PIECE != 0, first, next);
    _mm512_storeu_si512(to + input - begin, first), _mm512_storeu_si512(to + input - begin + 32, next);
  }
  for (int i = 0; i < head.others; ++i) {
    const int64_t input = head.other[i] >> 8;
    if (input >= begin && input < end) to[input - begin] = (to[input - begin] & 0xff) | (head.other[i] & 0xff) << 8;
  }
}

// Inputs [begin, end) of one output, all of whose upper bytes have codes, of R rows.
// What follows is not asked for: to ask costs a Zen 4 up to a fifth of the bandwidth (`ROWS_THAT_ASK`), with four rows as with one.
template <int R>
NOT_INLINE void output_of_coded(const CodedMatrix& matrix, int64_t output, const uint16_t* x, int64_t begin, int64_t end,
                                const Place& place) {
  static_assert(R <= ROWS_IN_TURN && ROWS_IN_TURN == 4, "their lanes are added together");
  Vector sums[ROWS_IN_TURN] = {};
  const __m512i upper = codes_of(matrix.row(output));
  const uint8_t* piece = matrix.numbers(output) + begin / PIECE * PIECE_BYTES;
  const auto multiply_64 = [&](int64_t input, bool second) __attribute__((always_inline)) {
    __m512i pairs[2];
    decode_half(piece, upper, second, pairs[0], pairs[1]);
    UNROLLED for (int i = 0; i < 2; ++i) {
      UNROLLED for (int r = 0; r < R; ++r) {
        const __m512i& row = *reinterpret_cast<const __m512i*>(x + r * matrix.inputs + input + 32 * i);
        asm("vdpbf16ps %2, %1, %0" : "+v"(sums[r]) : "v"(pairs[i]), "m"(row));
      }
    }
  };
  int64_t input = begin;
  if (input % PIECE != 0) multiply_64(input, true), input += HALF_PIECE, piece += PIECE_BYTES;
  for (; input + PIECE <= end; input += PIECE, piece += PIECE_BYTES) {
    multiply_64(input, false), multiply_64(input + HALF_PIECE, true);
  }
  if (input < end) multiply_64(input, false);
  const Quad added = lanes_added((__m512)sums[0], (__m512)sums[1], (__m512)sums[2], (__m512)sums[3]);
  for (int r = 0; r < R; ++r) {
    float& out = place.out[r * place.stride];
    out = place.begin ? added[r] : out + added[r];
  }
}

// The same of any output: decoded before it is multiplied.
NOT_INLINE void output_of_decoded(const CodedMatrix& matrix, int64_t output, int64_t rows, const uint16_t* x, int64_t begin, int64_t end,
                                  const Place& place) {
  alignas(LINE) uint16_t numbers[PAIR_BLOCK];
  decode(matrix, output, begin, end, numbers);
#define OUTPUT(R) case R: output_of_pairs<R>(numbers, x + begin, matrix.inputs, end - begin, place); break;
  switch (rows) { OUTPUT(1) OUTPUT(2) OUTPUT(3) OUTPUT(4) }
#undef OUTPUT
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
static void outputs_of_coded_rows(const Product& product, const CodedMatrix& matrix, int64_t first, int64_t last) {
  alignas(LINE) uint16_t numbers[TOGETHER * PAIR_BLOCK];
  const uint16_t* x = static_cast<const uint16_t*>(product.x);
  const int64_t step = block_of(product.inputs, PAIR_BLOCK), behind = matrix.row_bytes();
  const Split rows(product.rows, ROWS);
  const int64_t together = rows.count <= FEW_DECODED ? OUTPUTS : TOGETHER;
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
        switch (rows.size(part)) { TILES(3) TILES(4) TILES(5) TILES(6) }
#undef TILES
      }
    }
  }
}

// Outputs [first, last) of all rows.
static void outputs_of_coded(const Product& product, int64_t first, int64_t last) {
  static_assert(ROWS_IN_TURN == 4 && ROWS == 6, "tiles of more rows have three at least");
  const CodedMatrix matrix{static_cast<const uint8_t*>(product.weight), product.outputs, product.inputs};
  const uint16_t* x = static_cast<const uint16_t*>(product.x);
  if (product.rows > ROWS_IN_TURN) return outputs_of_coded_rows(product, matrix, first, last);
  const int64_t step = block_of(product.inputs, PAIR_BLOCK);
  for (int64_t output = first; output < last; ++output) {
    const bool all_coded = reinterpret_cast<const Head*>(matrix.row(output))->others == 0;
    for (int64_t block = 0; block < product.inputs; block += step) {
      const int64_t end = smaller(block + step, product.inputs);
      const Place place{product.out + output, product.outputs, 1, block == 0};
      if (!all_coded) {
        output_of_decoded(matrix, output, product.rows, x, block, end, place);
        continue;
      }
#define OUTPUT(R) case R: output_of_coded<R>(matrix, output, x, block, end, place); break;
      switch (product.rows) { OUTPUT(1) OUTPUT(2) OUTPUT(3) OUTPUT(4) }
#undef OUTPUT
    }
  }
}

// `count` products of the same rows.
template <typename Schedule>
void multiply_coded(const Product* products, int64_t count, int64_t threads, const Schedule& schedule) {
  multiply_by(products, count, Prepare(), ROWS, SIDE, MOST_OUTPUTS, threads, schedule,
              [](int64_t, const Product& product, int64_t first, int64_t last) { outputs_of_coded(product, first, last); });
}

// Rows by their `numbers`, in place of one that is not there the nearest.
template <typename Schedule>
void take_coded(const CodedMatrix& matrix, const int32_t* numbers, int64_t count, uint16_t* out, int64_t threads, const Schedule& schedule) {
  const Split parts(count, larger(1, (16 << 10) / matrix.inputs));
  in_parallel(parts.count, threads, schedule, [&](int64_t part) {
    for (int64_t place = parts.start(part); place < parts.start(part + 1); ++place) {
      const int64_t number = smaller(larger(numbers[place], 0), matrix.outputs - 1);
      decode(matrix, number, 0, matrix.inputs, out + place * matrix.inputs);
    }
  });
}
#endif

}  // namespace native
