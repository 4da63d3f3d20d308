// Products of a few rows with numbers of 4 bits. Lanes are outputs, so that no lanes are added: four inputs of eight lines, of two outputs
// each, lie together in a packed matrix. Of another they are brought together as they are read.

#pragma once

#include "fixed.h"

namespace native {

#if WIDTH >= 8
constexpr int64_t LANE_LINES = PACKED_LINES, LANE_OUTPUTS = PACKED_OUTPUTS;  // of a tile
constexpr int64_t PACKED_BEHIND = 2 * BEHIND;  // what a packed matrix asks for: it passes twice the lines before these are there

// Where a tile's lines begin, of a packed matrix the first one, and the rows' integers for the same input; `following` is asked for
// meanwhile.
struct LaneInputs {
  const uint8_t* lines[LANE_LINES];
  const uint8_t* following;
  const int8_t* x;
  int64_t stride;
};

// An instruction that multiplies and adds takes as long as several that follow it take to begin: with few rows what follows is added to
// sums of its own, so that none waits for the one before.
template <int R>
constexpr int LANE_CHAINS = INTEGER_QUADS && R <= 2 ? 4 / R : 1;

// Sums of R rows over `inputs` inputs from `start` on: of the lines' first outputs, and of the second ones.
template <Number NUMBER, bool PACKED, int R>
INLINE void lane_sums(const LaneInputs& of, int64_t start, int64_t inputs, Eight (&to)[R][2]) {
  constexpr int CHAINS = LANE_CHAINS<R>;
  __m256i first[CHAINS][R], second[CHAINS][R];
  UNROLLED for (int chain = 0; chain < CHAINS; ++chain) {
    UNROLLED for (int r = 0; r < R; ++r) first[chain][r] = second[chain][r] = _mm256_setzero_si256();
  }
  typedef Pairs<NUMBER, __m256i> Numbers;
  const auto add = [&](__m256i bytes, const int8_t* x, int turn) __attribute__((always_inline)) {  // four inputs
    const Numbers numbers(bytes);
    const int chain = turn % CHAINS;
    UNROLLED for (int r = 0; r < R; ++r) {
      int32_t quad;
      memcpy(&quad, x + r * of.stride, sizeof(quad));
      const __m256i row = _mm256_set1_epi32(quad);
      __m256i &own = first[chain][r], &other = second[chain][r];
      own = plus_step<NUMBER>(own, numbers.first, row), other = plus_step<NUMBER>(other, numbers.second, row);
      IN_REGISTER(own);
      IN_REGISTER(other);  // compilers would add products to each other first, and keep them in memory
    }
  };
  const auto packed = [&](int64_t input) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(of.lines[0] + LANE_LINES * input));
  };
  const auto step = [&](const uint8_t* const (&lines)[LANE_LINES], int64_t at, const int8_t* x) __attribute__((always_inline)) {
    __m256i read[LANE_LINES], bytes[BYTES / 4];
    if (!PACKED) {
      UNROLLED for (int i = 0; i < LANE_LINES; ++i) read[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lines[i] + at));
      turn_lines(read, bytes);
    }
    UNROLLED for (int i = 0; i < BYTES / 4; ++i) add(PACKED ? packed(at + 4 * i) : bytes[i], x + 4 * i, i);
  };
  int64_t done = 0;
  for (; done + BYTES <= inputs; done += BYTES) {
    const uint8_t* behind = of.following + LANE_LINES * (start + done);
    UNROLLED for (int64_t byte = 0; byte < LANE_LINES * BYTES; byte += LINE) __builtin_prefetch(behind + byte, 0, 2);
    step(of.lines, start + done, of.x + done);
  }
  if (PACKED) {
    for (; done < inputs; done += PACKED_INPUTS) add(packed(start + done), of.x + done, 0);
  } else if (done < inputs) {  // what is behind a line may belong to nobody
    uint8_t rest[LANE_LINES][BYTES] = {};
    const uint8_t* lines[LANE_LINES];
    for (int line = 0; line < LANE_LINES; ++line) {
      lines[line] = static_cast<uint8_t*>(memcpy(rest[line], of.lines[line] + start + done, inputs - done));
    }
    step(lines, 0, of.x + done);
  }
  UNROLLED for (int r = 0; r < R; ++r) {
    Eight own = {}, other = {};
    UNROLLED for (int chain = 0; chain < CHAINS; ++chain) own += (Eight)first[chain][r], other += (Eight)second[chain][r];
    to[r][0] = own;
    to[r][1] = Numbers::parted(own, other);
  }
}

// Scales or zeros of a tile's first outputs of each line, and of the second ones.
template <bool ZEROS>
INLINE void factors_of_lines(const uint8_t* from, Factor factor, EightFloats (&to)[2]) {
  EightFloats &first = to[0], &second = to[1];
  if (factor == Factor::bfloat16) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    first = (EightFloats)_mm256_slli_epi32(both, 16), second = (EightFloats)((Eight)both & int32_t(0xffff0000u));
  } else if (factor == Factor::bytes) {
    const Eight both = (Eight)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    const Eight one = ZEROS ? (Eight)_mm256_srai_epi32(_mm256_slli_epi32((__m256i)both, 24), 24) : both & 255;
    const Eight other = ZEROS ? (Eight)_mm256_srai_epi32(_mm256_slli_epi32((__m256i)both, 16), 24) : both >> 8;
    first = __builtin_convertvector(one, EightFloats), second = __builtin_convertvector(other, EightFloats);
    if (ZEROS) first *= ZERO_STEP, second *= ZERO_STEP;
  } else {
    const float* floats = reinterpret_cast<const float*>(from);
    const __m256 a = _mm256_loadu_ps(floats), b = _mm256_loadu_ps(floats + 8);
    const auto in_order = [](__m256 some) { return (EightFloats)_mm256_permute4x64_pd((__m256d)some, 0xd8); };
    first = in_order(_mm256_shuffle_ps(a, b, 0x88)), second = in_order(_mm256_shuffle_ps(a, b, 0xdd));
  }
}

// A block's sums wait until those of a few have been made: what becomes of one takes long, and of several at once no longer.
constexpr int64_t MOST_WAITING = 8;

template <int R>
struct Waiting {
  alignas(LINE) Eight sums[MOST_WAITING][R][2];
  int64_t block, groups[MOST_WAITING], count = 0;  // `block` is the first one's number
};

// `zeros`, perhaps null, and `scales` are those of the first group for `count` outputs, which are LANE_OUTPUTS or the matrix' last.
template <Number NUMBER, int R>
NOT_INLINE void add_blocks(const Scaled& scaled, const FixedRows& rows, const Waiting<R>& waiting, const uint8_t* zeros, const uint8_t* scales,
                           int64_t outputs, int64_t count, EightFloats (&totals)[R][2]) {
  const int64_t size = factor_bytes(scaled.factor);
  uint8_t some_zeros[LANE_OUTPUTS * sizeof(float)] = {}, some_scales[LANE_OUTPUTS * sizeof(float)] = {};
  const auto all_of = [&](const uint8_t* from, uint8_t* some) __attribute__((always_inline)) {
    __builtin_prefetch(from + LINE, 0, 2);  // another group's lie far away: nothing else asks for what follows
    return count == LANE_OUTPUTS ? from : static_cast<const uint8_t*>(memcpy(some, from, count * size));
  };
  EightFloats all[R][2];
  UNROLLED for (int r = 0; r < R; ++r) all[r][0] = totals[r][0], all[r][1] = totals[r][1];
  for (int64_t number = 0; number < waiting.count; ++number) {
    EightFloats taken[2] = {}, factors[2] = {EightFloats{} + 1.0f, EightFloats{} + 1.0f};
    const int64_t place = waiting.groups[number] * outputs * size;
    if (zeros != nullptr) factors_of_lines<true>(all_of(zeros + place, some_zeros), scaled.factor, taken);
    if (scaled.groups != 0) factors_of_lines<false>(all_of(scales + place, some_scales), scaled.factor, factors);
    UNROLLED for (int r = 0; r < R; ++r) {
      const int64_t of_row = (waiting.block + number) * rows.together + r;
      const Eight row_sums = (Eight)_mm256_set1_epi32(rows.sums[of_row]);
      const EightFloats row_scales = (EightFloats)_mm256_set1_ps(rows.scales[of_row]);
      UNROLLED for (int half = 0; half < 2; ++half) {
        all[r][half] = with_block<NUMBER>(all[r][half], waiting.sums[number][r][half], row_sums, row_scales, zeros != nullptr, taken[half],
                                          factors[half]);
      }
    }
  }
  UNROLLED for (int r = 0; r < R; ++r) totals[r][0] = all[r][0], totals[r][1] = all[r][1];
}

// R rows, and the outputs from `output` on, of which there are `count`, LANE_OUTPUTS at most.
template <Number NUMBER, bool PACKED, int R>
NOT_INLINE void tile_of_lanes(const Product& product, const Scaled& scaled, const Blocks& blocks, int64_t output, int64_t count) {
  const FixedRows rows(product, scaled, blocks);
  const uint8_t* matrix = static_cast<const uint8_t*>(product.weight) + output / 2 * product.inputs;
  LaneInputs of;
  UNROLLED for (int64_t line = 0; line < LANE_LINES; ++line) {
    of.lines[line] = matrix + smaller(line, (count - 1) / 2) * product.inputs;
  }
  of.following = matrix + (PACKED ? PACKED_BEHIND : larger(LANE_LINES * product.inputs, BEHIND)), of.stride = rows.stride;
  EightFloats totals[R][2] = {};
  Waiting<R> waiting;
  const int64_t size = factor_bytes(scaled.factor);
  const uint8_t* scales = static_cast<const uint8_t*>(scaled.scales) + output * size;
  const uint8_t* zeros = scaled.zeros == nullptr ? nullptr : static_cast<const uint8_t*>(scaled.zeros) + output * size;
  const auto add = [&] { add_blocks<NUMBER, R>(scaled, rows, waiting, zeros, scales, product.outputs, count, totals); };
  blocks.for_each([&](int64_t block, int64_t group, int64_t start, int64_t inputs) __attribute__((always_inline)) {
    if (waiting.count == MOST_WAITING) add(), waiting.count = 0;
    if (waiting.count == 0) waiting.block = block;
    of.x = reinterpret_cast<const int8_t*>(rows.block(blocks, 0, block));
    waiting.groups[waiting.count] = group;
    lane_sums<NUMBER, PACKED, R>(of, start, inputs, waiting.sums[waiting.count]);
    ++waiting.count;
  });
  add();
  UNROLLED for (int r = 0; r < R; ++r) {
    const __m256 lower = _mm256_unpacklo_ps((__m256)totals[r][0], (__m256)totals[r][1]);
    const __m256 upper = _mm256_unpackhi_ps((__m256)totals[r][0], (__m256)totals[r][1]);
    float some[LANE_OUTPUTS], *const out = product.out + r * product.outputs + output, *const to = count == LANE_OUTPUTS ? out : some;
    _mm256_storeu_ps(to, _mm256_permute2f128_ps(lower, upper, 0x20));
    _mm256_storeu_ps(to + 8, _mm256_permute2f128_ps(lower, upper, 0x31));
    if (to == some) memcpy(out, some, count * sizeof(float));
  }
}

// Outputs [first, last) of all rows, of which there are four at most.
template <Number NUMBER, bool PACKED>
static void outputs_by_lanes(const Product& product, const Scaled& scaled, const Blocks& blocks, int64_t first, int64_t last) {
  for (int64_t output = first; output < last; output += LANE_OUTPUTS) {
    const int64_t count = smaller(LANE_OUTPUTS, last - output);
#define TILE(R) case R: tile_of_lanes<NUMBER, PACKED, R>(product, scaled, blocks, output, count); break;
    switch (product.rows) { TILE(1) TILE(2) TILE(3) TILE(4) }
#undef TILE
  }
}
#endif

}  // namespace native
