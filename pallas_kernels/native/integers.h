// Products of rows that are rounded to int8, each over a scale of its own, with a matrix of int8. Sums are of integers, which no
// order changes.

#pragma once

#include "eight_sums.h"

namespace native {

#if INTEGER_QUADS
constexpr int INTEGER_OUTPUTS = 4, INTEGER_ROWS = 6;

INLINE __m128i lanes_added(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

template <int R, int Q, int LINES>
INLINE void sums_of_integers(const int8_t* weight, const int8_t* following, int64_t stride, const Rounded* x, int64_t x_stride,
                             int64_t inputs, int32_t (&found)[R][Q]) {
  // vpdpbusd multiplies unsigned with signed bytes: the matrix gets 128 added, and 128 times the row's sum is taken off later.
  __m512i sums[Q][R] = {};
  const __m512i sign = _mm512_set1_epi8(-128);
  int64_t done = 0;
  auto multiply_64 = [&](__mmask64 there) __attribute__((always_inline)) {
    prefetch<LINES, INTEGER_CHUNK>(following, done);
    __m512i bytes[Q];
    UNROLLED for (int q = 0; q < Q; ++q) {
      bytes[q] = _mm512_xor_si512(_mm512_maskz_loadu_epi8(there, weight + q * stride + done), sign);
    }
    UNROLLED for (int r = 0; r < R; ++r) {
      const __m512i row = _mm512_loadu_si512(x + r * x_stride + done);
      // GCC 12 moves every sum to another register and back around its own form of this instruction
      UNROLLED for (int q = 0; q < Q; ++q) asm("vpdpbusd %2, %1, %0" : "+v"(sums[q][r]) : "v"(bytes[q]), "v"(row));
    }
  };
  for (; done + INTEGER_CHUNK <= inputs; done += INTEGER_CHUNK) multiply_64(~__mmask64(0));
  if (done < inputs) multiply_64((__mmask64(1) << (inputs - done)) - 1);
  UNROLLED for (int r = 0; r < R; ++r) {
    if constexpr (Q == 4) {
      const __m128i all = lanes_added(sums[0][r], sums[1][r], sums[2][r], sums[3][r]);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(found[r]), all);
    } else {
      UNROLLED for (int q = 0; q < Q; ++q) found[r][q] = _mm512_reduce_add_epi32(sums[q][r]);
    }
  }
}

template <int R, int Q, int LINES>
INLINE void multiply_integers(const Product& product, const int8_t* following, const Rounded* x, int64_t output, int64_t row) {
  const int64_t x_stride = padded(product.inputs);
  int32_t found[R][Q];
  const int8_t* weight = static_cast<const int8_t*>(product.weight) + output * product.inputs;
  sums_of_integers<R, Q, LINES>(weight, following, product.inputs, x + row * x_stride, x_stride, product.inputs, found);
  for (int r = 0; r < R; ++r) {
    const RowScale& scale = product.row_scales()[row + r];
    if constexpr (Q == 4) {
      const __m128i off = _mm_set1_epi32(static_cast<int32_t>(128u * static_cast<uint32_t>(scale.sum)));
      const __m128 sums = _mm_cvtepi32_ps(_mm_sub_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(found[r])), off));
      const __m128 scaled = _mm_mul_ps(_mm_mul_ps(sums, _mm_set1_ps(scale.scale)), _mm_loadu_ps(product.scales + output));
      _mm_storeu_ps(product.out + (row + r) * product.outputs + output, scaled);
      continue;
    }
    for (int q = 0; q < Q; ++q) {
      // in unsigned numbers, whose overflow is defined: what is taken off brings the sum back
      const uint32_t off = 128u * static_cast<uint32_t>(scale.sum);
      const float sum = static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(found[r][q]) - off));
      product.out[(row + r) * product.outputs + output + q] = sum * scale.scale * product.scales[output + q];
    }
  }
}

template <int R, int Q, int LINES>
NOT_INLINE void tile_of_integers(const Product& product, const int8_t* following, const Rounded* x, int64_t output, int64_t row) {
  multiply_integers<R, Q, LINES>(product, following, x, output, row);
}

// Tiles of R rows one after the other, of outputs [first, last).
template <int R>
NOT_INLINE void tiles_of_integers(const Product& product, const Rounded* x, int64_t first, int64_t last, int64_t row) {
  for (; first < last; first += INTEGER_OUTPUTS) multiply_integers<R, INTEGER_OUTPUTS, 0>(product, nullptr, x, first, row);
}

static void outputs_of_integers(const Product& product, int64_t first, int64_t last) {
  const int8_t* weight = static_cast<const int8_t*>(product.weight);
  const Rounded* x = reinterpret_cast<const Rounded*>(product.prepared_rows());
  const Split rows(product.rows, INTEGER_ROWS);
  const bool few = rows.count <= FEW_TILES;
  auto one_tile = [&](int64_t output, int64_t part) {
    const int64_t row = rows.start(part);
    if (output + INTEGER_OUTPUTS > last) {
      for (; output < last; ++output) {
        for (int64_t r = row; r < rows.start(part + 1); ++r) tile_of_integers<1, 1, 0>(product, nullptr, x, output, r);
      }
      return;
    }
    with_lines<INTEGER_OUTPUTS>(few ? lines_ahead(rows.count, part, INTEGER_OUTPUTS) : 0, [&](auto lines) {
      const int8_t* following = weight + (output + INTEGER_OUTPUTS + part * lines.value) * product.inputs;
#define TILE(R) \
  case R: \
    if constexpr (R <= INTEGER_ROWS) tile_of_integers<R, INTEGER_OUTPUTS, lines.value>(product, following, x, output, row); \
    return;
      switch (rows.size(part)) { TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) }
#undef TILE
    });
  };
  if (product.rows <= ROWS_IN_TURN) {
    for (int64_t output = first; output < last; ++output) {
      const int8_t* following = weight + output * product.inputs + BEHIND;
#define OUTPUT(R) case R: tile_of_integers<R, 1, (R >= ROWS_THAT_ASK)>(product, following, x, output, 0); break;
      switch (product.rows) { OUTPUT(1) OUTPUT(2) OUTPUT(3) OUTPUT(4) }
#undef OUTPUT
    }
    return;
  }
  if (few) {
    for (int64_t output = first; output < last; output += INTEGER_OUTPUTS) {
      for (int64_t part = 0; part < rows.count; ++part) one_tile(output, part);
    }
    return;
  }
  const int64_t whole = last - (last - first) % INTEGER_OUTPUTS;
  for (int64_t part = 0; part < rows.count; ++part) {
    const auto tiles = rows.size(part) == INTEGER_ROWS ? tiles_of_integers<INTEGER_ROWS> : tiles_of_integers<INTEGER_ROWS - 1>;
    tiles(product, x, first, whole, rows.start(part));
    if (whole < last) one_tile(whole, part);
  }
}
#else
// R rows, and as many outputs as make eight results, of which there are `count`.
template <int R>
NOT_INLINE void tile_of_integers(const Product& product, int64_t row, int64_t output, int64_t count) {
  typedef EightOf<Number::int8, R> Of;
  const uint8_t* matrix = static_cast<const uint8_t*>(product.weight) + output * product.inputs;
  const int64_t stride = padded(product.inputs);
  Of of;
  for (int64_t line = 0; line < Of::LINES; ++line) of.lines[line] = matrix + smaller(line, count - 1) * product.inputs;
  of.x = static_cast<const int16_t*>(product.prepared_rows()) + row * stride, of.x_stride = stride, of.packed = false;
  of.following = matrix + (row == 0 ? larger(Of::LINES * product.inputs, BEHIND) : 0);
  const Eight sums = eight_sums(of, 0, product.inputs);
  for (int i = 0; i < 8; ++i) {
    const int64_t r = row + i / Of::OUTPUTS, q = i % Of::OUTPUTS;
    if (q >= count) continue;
    product.out[r * product.outputs + output + q] =
        static_cast<float>(sums[i]) * product.row_scales()[r].scale * product.scales[output + q];
  }
}

template <int R>
static void tiles_of_integers(const Product& product, int64_t row, int64_t first, int64_t last) {
  for (int64_t output = first; output < last; output += 8 / R) {
    tile_of_integers<R>(product, row, output, smaller(8 / R, last - output));
  }
}

static void outputs_of_integers(const Product& product, int64_t first, int64_t last) {
  int64_t row = 0;
  for (; row + 4 <= product.rows; row += 4) tiles_of_integers<4>(product, row, first, last);
  for (; row + 2 <= product.rows; row += 2) tiles_of_integers<2>(product, row, first, last);
  if (row < product.rows) tiles_of_integers<1>(product, row, first, last);
}
#endif

// int8 over the row's largest magnitude by 127, ties to even; what is not finite leaves zeros and a scale that is not. XLA
// multiplies by the reciprocal of 127, and so does this: equal scales make equal integers.
static void prepare_integers(const Product& product, int64_t row) {
  const float* from = static_cast<const float*>(product.x) + row * product.inputs;
  Rounded* to = static_cast<Rounded*>(product.prepared_rows()) + row * padded(product.inputs);
  // Vectors, and in the end a copy of what fills none.
  const int64_t whole = product.inputs / WIDTH * WIDTH, more = product.inputs - whole;
  float rest[WIDTH] = {};
  memcpy(rest, from + whole, more * sizeof(float));

  Integers most = {};  // as integers, magnitudes have the order of their values, and NaN comes last
  auto compare = [&](const float* values) {
    const Integers magnitudes = *reinterpret_cast<const Integers*>(values) & 0x7fffffff;
    most = magnitudes > most ? magnitudes : most;
  };
  for (int64_t i = 0; i < whole; i += WIDTH) compare(from + i);
  compare(rest);
  int32_t bits = 0;
  for (int i = 0; i < WIDTH; ++i) bits = most[i] > bits ? most[i] : bits;
  float largest;
  memcpy(&largest, &bits, sizeof(largest));
  const float scale = largest * (1.0f / 127), divisor = scale == 0 ? 1 : scale;

  const float shift = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to an integer, ties to even
  Integers sums = {};
  memset(to, 0, padded(product.inputs) * sizeof(Rounded));
  auto round = [&](const float* values, Rounded* place, int64_t count) {
    const Vector rounded = (*reinterpret_cast<const Vector*>(values) / divisor + shift) - shift;
    const Integers integers = __builtin_convertvector(rounded, Integers);
    const RoundedVector narrow = __builtin_convertvector(integers, RoundedVector);
    memcpy(place, &narrow, count * sizeof(Rounded));
    sums += integers;
  };
  if (bits < 0x7f800000) {
    for (int64_t i = 0; i < whole; i += WIDTH) round(from + i, to + i, WIDTH);
    round(rest, to + whole, more);
  }
  int32_t sum = 0;
  for (int i = 0; i < WIDTH; ++i) sum += sums[i];
  product.row_scales()[row] = RowScale{scale, sum};
}

}  // namespace native
