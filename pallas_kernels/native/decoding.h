// Numbers of bfloat16 out of matrices in 12 bits (`coding.h`), by vectors of 64 bytes.

#pragma once

#include "coding.h"
#include "product.h"

namespace native {

#if WIDTH == 16
typedef Coded<const uint8_t> CodedMatrix;

inline bool all_coded(const CodedMatrix& matrix, int64_t output) { return reinterpret_cast<const Head*>(matrix.row(output))->others == 0; }

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

// The numbers of an output, 64 at once from an input on: decoded as they are multiplied ...
struct Codes {
  const uint8_t* row;

  INLINE_MEMBER __m512i upper() const { return codes_of(row); }
  INLINE_MEMBER void read(int64_t input, bool second, __m512i upper, __m512i (&to)[2]) const {
    decode_half(row + sizeof(Head) + uint64_t(input) / PIECE * PIECE_BYTES, upper, second, to[0], to[1]);
  }
};

// ... or before, from the input `begin` on.
struct Decoded {
  const uint16_t* numbers;
  int64_t begin;

  INLINE_MEMBER __m512i upper() const { return _mm512_setzero_si512(); }
  INLINE_MEMBER void read(int64_t input, bool, __m512i, __m512i (&to)[2]) const {
    to[0] = _mm512_loadu_si512(numbers + input - begin), to[1] = _mm512_loadu_si512(numbers + input - begin + CHUNK);
  }
};

// `multiply(input, second)` for each half of a piece in [begin, end).
template <typename Multiply>
INLINE void for_halves(int64_t begin, int64_t end, const Multiply& multiply) {
  int64_t input = begin;
  if (uint64_t(input) % PIECE != 0) multiply(input, true), input += HALF_PIECE;
  for (; input + PIECE <= end; input += PIECE) multiply(input, false), multiply(input + HALF_PIECE, true);
  if (input < end) multiply(input, false);
}

INLINE void put(float added, const Place& place, int64_t row, int64_t output) {
  float& out = place.out[row * place.stride + output];
  out = place.begin ? added : out + added;
}

// The sums of two outputs of a row, and of the next one unless it is the same; where `place` has one, the second is left out.
INLINE void put_two(Quad added, const Place& place, int64_t row, int64_t next) {
  if (place.outputs < 2) return put(added[0], place, row, 0), row < next ? put(added[2], place, next, 0) : void();
  __m64* outs[] = {reinterpret_cast<__m64*>(place.out + row * place.stride), reinterpret_cast<__m64*>(place.out + next * place.stride)};
  __m128 sums = (__m128)added;
  if (!place.begin) sums = _mm_add_ps(sums, _mm_loadh_pi(_mm_loadl_pi(_mm_setzero_ps(), outs[0]), outs[1]));
  _mm_storel_pi(outs[0], sums), _mm_storeh_pi(outs[1], sums);
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
