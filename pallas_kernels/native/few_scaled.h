// Products of few rows with numbers of 4 bits, which never leave the registers: two outputs at a time, so that a matrix is read in
// the order in which it lies. A lane's sum is made of the same numbers in the same order as those of `kernels.h`.

#pragma once

#include "four_bits.h"

namespace native {

#if WIDTH == 8
constexpr int64_t FEW_SCALED_ROWS = 2;
#elif BFLOAT16_PAIRS
constexpr int64_t FEW_SCALED_ROWS = ROWS_IN_TURN;
#else
constexpr int64_t FEW_SCALED_ROWS = 0;
#endif

// Whether there are few rows, and numbers come in whole chunks, each of one group.
inline bool in_registers(const Product& product, const Scaled& scaled) {
  const bool whole = product.inputs % CHUNK == 0 && (scaled.groups <= 1 || scaled.group % CHUNK == 0);
  return scaled.paired() && whole && product.rows <= FEW_SCALED_ROWS;
}

#if WIDTH == 8 || BFLOAT16_PAIRS
// Calls `multiply(done, bytes, low, high)` for each chunk of a block of inputs of two outputs, with the tables of its group.
template <bool ZEROS, typename Multiply>
INLINE void by_group(const Product& product, const Scaled& scaled, int64_t output, int64_t block, int64_t inputs,
                     const Multiply& multiply) {
  const uint8_t* from = static_cast<const uint8_t*>(product.weight) + output / 2 * product.inputs + block;
  const int64_t group = scaled.groups <= 1 ? product.inputs : scaled.group;
  int64_t done = 0;
  for (int64_t number = block / group; done < inputs; ++number) {
    const int64_t end = smaller(inputs, (number + 1) * group - block);
    const PairOfLines<ZEROS> lines(scaled, product.outputs, number, output);
    const Table low(scaled.number, lines, 0), high(scaled.number, lines, 1);
    for (; done < end; done += CHUNK) {
      __builtin_prefetch(from + done + BEHIND, 0, 2);
      multiply(done, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + done)), low, high);
    }
  }
}
#endif

#if WIDTH == 8
// Of 32 numbers each half of a register looks up 16: of the 16 lanes of a sum the second four and the third have changed places, and
// so have those of the rows.
static void prepare_few(const Product& product, int64_t part) {
  prepare_floats<uint16_t>(product, part);
  float* values = static_cast<float*>(product.prepared);
  for (int64_t i = 0; i < product.rows * padded(product.inputs); i += LANES) {
    for (int64_t lane = 4; lane < 8; ++lane) {
      const float other = values[i + lane + 4];
      values[i + lane + 4] = values[i + lane], values[i + lane] = other;
    }
  }
}

template <int R, bool ZEROS>
NOT_INLINE void outputs_in_registers(const Product& product, const Scaled& scaled, int64_t output, int64_t block,
                                     int64_t inputs) {
  const float* x = product.prepared_block(block);
  Sum sums[OUTPUTS][R] = {};
  const __m256i four = _mm256_set1_epi8(15);
  const auto chunk = [&](int64_t done, __m256i bytes, const Table& low, const Table& high) __attribute__((always_inline)) {
    const auto multiply = [&](__m256i numbers, const Table& table, Sum (&own)[R]) __attribute__((always_inline)) {
      __m256i halves[PARTS];
      look_up(numbers, table, halves[0], halves[1]);
      UNROLLED for (int part = 0; part < PARTS; ++part) {
        const Words pairs = (Words)halves[part];
        const Vector even = (Vector)(pairs << 16), odd = (Vector)(pairs & 0xffff0000u);
        UNROLLED for (int r = 0; r < R; ++r) {
          const Vector* row = reinterpret_cast<const Vector*>(x + done * R + r * LANES + part * WIDTH);
          Vector& sum = own[r].part[part];
          sum = even * row[0] + sum, sum = odd * row[R * PARTS] + sum;
        }
      }
    };
    multiply(_mm256_and_si256(bytes, four), low, sums[0]);
    multiply(_mm256_and_si256(_mm256_srli_epi16(bytes, 4), four), high, sums[1]);
  };
  by_group<ZEROS>(product, scaled, output, block, inputs, chunk);
  UNROLLED for (int q = 0; q < OUTPUTS; ++q) {
    UNROLLED for (int r = 0; r < R; ++r) {
      const __m256i a = (__m256i)sums[q][r].part[0], b = (__m256i)sums[q][r].part[1];
      sums[q][r].part[0] = (Vector)_mm256_permute2x128_si256(a, b, 0x20);
      sums[q][r].part[1] = (Vector)_mm256_permute2x128_si256(a, b, 0x31);
    }
  }
  add_lanes<R>(sums, Place{product.out + output, product.outputs, OUTPUTS, block == 0});
}
#else
static const auto prepare_few = prepare_bfloat16;
#endif

#if BFLOAT16_PAIRS
template <int R, bool ZEROS>
NOT_INLINE void outputs_in_registers(const Product& product, const Scaled& scaled, int64_t output, int64_t block,
                                     int64_t inputs) {
  const uint16_t* x = static_cast<const uint16_t*>(product.x) + block;
  Vector sums[2][ROWS_IN_TURN] = {};
  const auto chunk = [&](int64_t done, __m256i bytes, const Table& low, const Table& high) __attribute__((always_inline)) {
    const __m512i words = _mm512_cvtepu8_epi16(bytes);
    const __m512i lows = _mm512_permutexvar_epi16(words, low.twice());
    const __m512i highs = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), high.twice());
    UNROLLED for (int r = 0; r < R; ++r) {
      const __m512i row = _mm512_loadu_si512(x + r * product.inputs + done);
      asm("vdpbf16ps %2, %1, %0" : "+v"(sums[0][r]) : "v"(lows), "v"(row));
      asm("vdpbf16ps %2, %1, %0" : "+v"(sums[1][r]) : "v"(highs), "v"(row));
    }
  };
  by_group<ZEROS>(product, scaled, output, block, inputs, chunk);
  for (int q = 0; q < 2; ++q) {
    const Quad added = lanes_added((__m512)sums[q][0], (__m512)sums[q][1], (__m512)sums[q][2], (__m512)sums[q][3]);
    for (int r = 0; r < R; ++r) {
      float& out = product.out[r * product.outputs + output + q];
      out = block == 0 ? added[r] : out + added[r];
    }
  }
}
#endif

// Outputs [first, last) of all rows.
template <bool ZEROS>
static void outputs_of_few_scaled(const Product& product, const Scaled& scaled, int64_t first, int64_t last) {
#if WIDTH == 8 || BFLOAT16_PAIRS
  const int64_t step = block_of(product.inputs, MOST_PANEL);
  for (int64_t output = first; output < last; output += 2) {
    for (int64_t block = 0; block < product.inputs; block += step) {
      const int64_t inputs = smaller(step, product.inputs - block);
#define OUTPUT(R) \
  case R: if constexpr (R <= FEW_SCALED_ROWS) outputs_in_registers<R, ZEROS>(product, scaled, output, block, inputs); break;
      switch (product.rows) { OUTPUT(1) OUTPUT(2) OUTPUT(3) OUTPUT(4) }
#undef OUTPUT
    }
  }
#endif
}

}  // namespace native
