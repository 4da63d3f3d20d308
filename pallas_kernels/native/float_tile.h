// Sums of products of a few outputs with a few rows, by the best instructions among those that the compiler was told to use.
//
// A sum of floating point is made block by block of `BLOCK` inputs, within a block in 16 lanes: of every 32 inputs a lane takes
// two, one after the other, and in the end the lanes are added in one fixed order. Neither the rows and outputs beside it nor the
// thread has a say in it.

#pragma once

#include <type_traits>

#include "operands.h"

namespace native {

// WIDTH: floats in a vector register. OUTPUTS and ROWS: of the sums that the registers hold beside what is multiplied.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define WIDTH 16
constexpr int OUTPUTS = 4, ROWS = 6;
#elif defined(__AVX2__) && defined(__FMA__)
#define WIDTH 8
constexpr int OUTPUTS = 2, ROWS = 3;
#else
#define WIDTH 4
constexpr int OUTPUTS = 2, ROWS = 2;
#endif
constexpr int PARTS = LANES / WIDTH;
#if WIDTH == 16 && defined(__AVX512VNNI__)
#define INTEGER_QUADS 1  // bytes are multiplied in fours
typedef int8_t Rounded;
#else
#define INTEGER_QUADS 0
typedef int16_t Rounded;  // what the widest multiplication of integers takes here
#endif
#if WIDTH == 16 && defined(__AVX512BF16__)
#define BFLOAT16_PAIRS 1  // bfloat16 is multiplied in twos, and never widened
constexpr int64_t PAIR_BLOCK = 1536;  // as `BLOCK`, of numbers of half the size: fewer sums whose lanes are to be added
#else
#define BFLOAT16_PAIRS 0
#endif
constexpr int64_t FEW_TILES = 6;  // of rows, at most: with so few a matrix is multiplied as it lies, and else widened first
// Outputs of a task whose matrix is widened, at most, and bytes of rows that stay in the second cache beside those: machines with vectors
// of 64 bytes have one of a mebibyte at least.
constexpr int64_t WIDENED_OUTPUTS = WIDTH == 16 ? 2 * MOST_OUTPUTS : MOST_OUTPUTS, NEAR_ROWS = 512 << 10;
constexpr int WIDE_ROWS = PARTS == 2 ? 2 * ROWS : ROWS;  // of a tile whose lanes are summed part by part

// Rows of a tile, at most. With more than fit whole a number of the matrix is multiplied twice as often before the next is read. Two
// cores that read a matrix of 7 to 11 rows from memory wait for that, and smaller tiles ask for what follows them more evenly.
constexpr int64_t tile_rows(int64_t rows) {
  const bool one = rows <= WIDE_ROWS, several = rows >= 2 * WIDE_ROWS;
  return rows > ROWS && (one || several) ? WIDE_ROWS : ROWS;
}

typedef float Vector __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * WIDTH), aligned(2), may_alias));  // pairs of bfloat16
typedef int32_t Integers __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef Rounded RoundedVector __attribute__((vector_size(WIDTH * sizeof(Rounded)), aligned(1), may_alias));
typedef float Quad __attribute__((vector_size(16), aligned(4), may_alias));

#if defined(__clang__)
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED _Pragma("GCC unroll 12")
#endif
#if defined(__x86_64__)
#define IN_REGISTER(vector) asm("" : "+v"(vector))  // compilers would read it from memory again at each use
#else
#define IN_REGISTER(vector)
#endif
#define INLINE_MEMBER inline __attribute__((always_inline))
#define INLINE static INLINE_MEMBER
#define NOT_INLINE static __attribute__((noinline))

// With few rows a matrix is read from memory once, and memory delivers in order: outputs that are multiplied together are read in
// turn, at half its speed. So what follows them is asked for meanwhile, in the order in which it lies. `lines_ahead` of as many
// outputs as a tile has: all by a tile of rows that is alone, half by each of the first two of several.
INLINE int64_t lines_ahead(int64_t tiles, int64_t part, int64_t outputs) {
  return tiles == 1 ? outputs : part < 2 ? outputs / 2 : 0;
}

// Call `f` with `lines`, one of those, as a constant.
template <int COUNT, typename F>
INLINE void with_lines(int64_t lines, const F& f) {
  if (lines == COUNT) return f(std::integral_constant<int, COUNT>());
  if (lines == COUNT / 2) return f(std::integral_constant<int, COUNT / 2>());
  f(std::integral_constant<int, 0>());
}

// Ask for `LINES` times `COUNT` numbers of those that follow, into the second cache: the first one has the rows.
template <int LINES, int COUNT, typename Weight>
INLINE void prefetch(const Weight* following, int64_t done) {
  const char* from = reinterpret_cast<const char*>(following + LINES * done);
  UNROLLED for (int byte = 0; byte < LINES * COUNT * int(sizeof(Weight)); byte += 64) __builtin_prefetch(from + byte, 0, 2);
}

// Ask for the lines [first, last) of each of as many outputs as a tile has, `stride` apart.
template <typename Weight>
INLINE void ask_for(const Weight* outputs, int64_t stride, int64_t first, int64_t last) {
  UNROLLED for (int q = 0; q < OUTPUTS; ++q) {
    const char* from = reinterpret_cast<const char*>(outputs + q * stride);
    for (int64_t line = first; line < last; ++line) __builtin_prefetch(from + line * LINE, 0, 2);
  }
}

// With so few rows that are multiplied as they lie, outputs are made one after the other: a matrix is read in order, and what
// is asked for is so many bytes behind what is read. Fewer than `ROWS_THAT_ASK` have so few instructions for what they read that a Zen 4
// has begun to read what follows before it would be asked for: to ask costs it up to a quarter of the bandwidth.
constexpr int64_t ROWS_IN_TURN = 4, ROWS_THAT_ASK = 3, BEHIND = 4096;

// Rounded once. `IN_ORDER`: where it is written. Compilers move products of vectors of eight, and then the registers do not hold all sums.
template <bool IN_ORDER>
INLINE void add_product(Vector& sum, Vector a, Vector b) {
#if WIDTH == 8
  if constexpr (IN_ORDER) {
    asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return;
  }
#endif
  sum = a * b + sum;
}

struct Sum {
  Vector part[PARTS];
};

// 16 of 32 inputs as float32: bfloat16's even ones or its odd ones, float32's first or second half.
template <bool SECOND>
INLINE Vector widened(const uint16_t* from, int part) {
  const Words& pairs = *reinterpret_cast<const Words*>(from + 2 * WIDTH * part);
#if WIDTH == 8
  if constexpr (SECOND) {  // read again: compilers keep what they have read in a register, and there is none to spare
    Vector found;
    asm("vandps %2, %1, %0" : "=x"(found) : "x"(Words{} + 0xffff0000u), "m"(pairs));
    return found;
  }
#endif
  return (Vector)(SECOND ? pairs & 0xffff0000u : pairs << 16);
}

template <bool SECOND>
INLINE Vector widened(const float* from, int part) {
  return *reinterpret_cast<const Vector*>(from + LANES * SECOND + WIDTH * part);
}

// `WIDTH` bfloat16 as float32.
INLINE Vector floats_of(const uint16_t* from) {
#if WIDTH == 16
  return (Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))), 16);
#elif WIDTH == 8
  return (Vector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))), 16);
#else
  Integers bits;
  for (int i = 0; i < WIDTH; ++i) bits[i] = static_cast<int32_t>(uint32_t(from[i]) << 16);
  return (Vector)bits;
#endif
}

#if WIDTH == 16
// Four sums, each with its lanes added.
INLINE Quad lanes_added(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512d ab = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
  const __m512d cd = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
  const __m512 all =
      _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return (Quad)_mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}
#elif WIDTH == 8
INLINE __m128 quads_added(const Sum& sum) {
  const __m256 half = (__m256)(sum.part[0] + sum.part[1]);
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

INLINE Quad lanes_added(const Sum& first, const Sum& second, const Sum& third, const Sum& fourth) {
  const __m128 a = quads_added(first), b = quads_added(second), c = quads_added(third), d = quads_added(fourth);
  const __m128 ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
  const __m128 cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
  return (Quad)_mm_hadd_ps(ab, cd);
}
#else
INLINE float lanes_added(const Sum& sum) {
  const Quad quad = (sum.part[0] + sum.part[2]) + (sum.part[1] + sum.part[3]);
  return (quad[0] + quad[2]) + (quad[1] + quad[3]);
}
#endif

// Where a few outputs of a matrix lie: as they were given, each in a place of its own. LINES: of what follows (`prefetch`).
template <typename Weight, int LINES = 0>
struct Given {
  static constexpr bool IN_ORDER = true;
  const Weight* outputs[OUTPUTS];
  const Weight* following;

  template <bool SECOND>
  INLINE_MEMBER Vector vector(int64_t input, int q, int part) const {
    return widened<SECOND>(outputs[q] + input, part);
  }
};

// Or together, widened, 16 inputs of each in turn.
struct Packed {
  static constexpr bool IN_ORDER = false;
  const float* values;

  template <bool SECOND>
  INLINE_MEMBER Vector vector(int64_t input, int q, int part) const {
    Vector found = *reinterpret_cast<const Vector*>(values + input * OUTPUTS + (SECOND * OUTPUTS + q) * LANES + WIDTH * part);
    IN_REGISTER(found);
    return found;
  }
};

// Some lanes of the sums of a tile, by the parts [FIRST, FIRST + COUNT) of them.
template <int R, int FIRST, int COUNT>
struct Lanes {
  Vector sums[OUTPUTS][R][COUNT] = {};

  // 16 of 32 inputs of the rows, which lie like `Packed`.
  template <bool SECOND, typename Weight>
  INLINE_MEMBER void multiply_16(const Weight& weight, int64_t input, const float* x) {
    UNROLLED for (int part = 0; part < COUNT; ++part) {
      Vector values[OUTPUTS];
      UNROLLED for (int q = 0; q < OUTPUTS; ++q) values[q] = weight.template vector<SECOND>(input, q, FIRST + part);
      UNROLLED for (int r = 0; r < R; ++r) {
        Vector row = *reinterpret_cast<const Vector*>(x + (SECOND * R + r) * LANES + WIDTH * (FIRST + part));
        IN_REGISTER(row);
        UNROLLED for (int q = 0; q < OUTPUTS; ++q) add_product<Weight::IN_ORDER>(sums[q][r][part], values[q], row);
      }
    }
  }

  template <typename Weight>
  INLINE_MEMBER void multiply_32(const Weight& weight, int64_t input, const float* x) {
    multiply_16<false>(weight, input, x);
    multiply_16<true>(weight, input, x);
  }

  INLINE_MEMBER void store(Sum (&to)[OUTPUTS][R]) const {
    UNROLLED for (int q = 0; q < OUTPUTS; ++q) {
      UNROLLED for (int r = 0; r < R; ++r) {
        UNROLLED for (int part = 0; part < COUNT; ++part) to[q][r].part[FIRST + part] = sums[q][r][part];
      }
    }
  }
};

template <int R, int FIRST, int COUNT>
INLINE void multiply_inputs(const Packed& weight, const float* x, int64_t inputs, Lanes<R, FIRST, COUNT>& lanes) {
  for (int64_t done = 0; done < inputs; done += CHUNK) lanes.multiply_32(weight, done, x + done * R);
}

// The last inputs, fewer than 32: x goes on with zeros, and so must the matrix.
template <int R, int FIRST, int COUNT, typename Weight, int LINES>
INLINE void multiply_rest(const Given<Weight, LINES>& weight, int64_t done, const float* x, int64_t inputs, Lanes<R, FIRST, COUNT>& lanes) {
  Weight rest[OUTPUTS][CHUNK] = {};
  Given<Weight> last;
  for (int q = 0; q < OUTPUTS; ++q) {
    memcpy(rest[q], weight.outputs[q] + done, (inputs - done) * sizeof(Weight));
    last.outputs[q] = rest[q];
  }
  lanes.multiply_32(last, 0, x);
}

template <int R, int FIRST, int COUNT, typename Weight, int LINES>
INLINE void multiply_inputs(const Given<Weight, LINES>& weight, const float* x, int64_t inputs, Lanes<R, FIRST, COUNT>& lanes) {
  int64_t done = 0;
  for (; done + CHUNK <= inputs; done += CHUNK) {
    constexpr int EACH = LINES * COUNT / PARTS;  // a part asks for its share
    prefetch<EACH, CHUNK>(weight.following + FIRST * EACH * inputs, done);
    lanes.multiply_32(weight, done, x + done * R);
  }
  if (done < inputs) multiply_rest(weight, done, x + done * R, inputs, lanes);
}

// Where the sums of a tile go: those of `outputs` outputs, with sums of earlier inputs unless they begin with these.
struct Place {
  float* out;
  int64_t stride, outputs;
  bool begin;
};

template <int R>
INLINE void add_lanes(const Sum (&sums)[OUTPUTS][R], const Place& place) {
#if WIDTH == 8
  const auto put = [&](int r, __m128 pair) __attribute__((always_inline)) {
    float* out = place.out + r * place.stride;
    __m64* both = reinterpret_cast<__m64*>(out);
    if (place.outputs == OUTPUTS) {
      _mm_storel_pi(both, place.begin ? pair : _mm_add_ps(_mm_loadl_pi(_mm_setzero_ps(), both), pair));
    } else {
      *out = place.begin ? pair[0] : *out + pair[0];
    }
  };
  UNROLLED for (int r = 0; r < R; r += 2) {  // two rows at a time
    const int next = r + 1 < R ? r + 1 : r;
    const __m128 added = (__m128)lanes_added(sums[0][r], sums[1][r], sums[0][next], sums[1][next]);
    put(r, added);
    if (r < next) put(next, _mm_movehl_ps(added, added));
  }
#else
  UNROLLED for (int r = 0; r < R; ++r) {
    float* out = place.out + r * place.stride;
#if WIDTH == 16
    Quad added = lanes_added((__m512)sums[0][r].part[0], (__m512)sums[1][r].part[0], (__m512)sums[2][r].part[0],
                             (__m512)sums[3][r].part[0]);
    if (place.outputs == OUTPUTS) {
      Quad& whole = *reinterpret_cast<Quad*>(out);
      whole = place.begin ? added : whole + added;
      continue;
    }
#else
    float added[OUTPUTS];
    UNROLLED for (int q = 0; q < OUTPUTS; ++q) added[q] = lanes_added(sums[q][r]);
#endif
    for (int64_t q = 0; q < place.outputs; ++q) out[q] = place.begin ? added[q] : out[q] + added[q];
  }
#endif
}

// The lanes of one part, of more rows than the registers hold all lanes of.
template <int R, int PART, typename Weight>
NOT_INLINE void part_of_tile(const Weight& weight, const float* x, int64_t inputs, Sum (&sums)[OUTPUTS][R]) {
  Lanes<R, PART, 1> lanes;
  multiply_inputs(weight, x, inputs, lanes);
  lanes.store(sums);
}

// `OUTPUTS` outputs of R rows, with a block of inputs. Where it is inlined, compilers keep its sums in memory.
template <int R, typename Weight>
NOT_INLINE void tile(Weight weight, const float* x, int64_t inputs, Place place) {
  Sum sums[OUTPUTS][R];
  if constexpr (R > ROWS) {
    part_of_tile<R, 0>(weight, x, inputs, sums);
    part_of_tile<R, PARTS - 1>(weight, x, inputs, sums);
  } else {
    Lanes<R, 0, PARTS> lanes;
    multiply_inputs(weight, x, inputs, lanes);
    lanes.store(sums);
  }
  add_lanes<R>(sums, place);
}

// Twice `OUTPUTS` outputs of one row: with half as many the sums are so few that each waits for what was added to it before.
template <typename Weight>
NOT_INLINE void wide_tile_of_row(const Weight* weight, int64_t stride, const Weight* following, const float* x, int64_t inputs, Place place) {
  Given<Weight> given[2];
  UNROLLED for (int q = 0; q < 2 * OUTPUTS; ++q) given[q / OUTPUTS].outputs[q % OUTPUTS] = weight + q * stride;
  Lanes<1, 0, PARTS> lanes[2];
  int64_t done = 0;
  for (; done + CHUNK <= inputs; done += CHUNK) {
    prefetch<2 * OUTPUTS, CHUNK>(following, done);
    UNROLLED for (int half = 0; half < 2; ++half) lanes[half].multiply_32(given[half], done, x + done);
  }
  Sum sums[OUTPUTS][2];
  UNROLLED for (int half = 0; half < 2; ++half) {
    if (done < inputs) multiply_rest(given[half], done, x + done, inputs, lanes[half]);
    Sum own[OUTPUTS][1];
    lanes[half].store(own);
    UNROLLED for (int q = 0; q < OUTPUTS; ++q) sums[q][half] = own[q][0];
  }
  place.stride = OUTPUTS;  // halves go where rows would
  add_lanes<2>(sums, place);
}

template <int LEAST, int MOST = ROWS, typename Weight>
static void tiles(int64_t rows, const Weight& weight, const float* x, int64_t inputs, const Place& place) {
#define TILE(R) \
  case R: if constexpr (LEAST <= R && R <= MOST) tile<R>(weight, x, inputs, place); return;
  switch (rows) { TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) }
#undef TILE
}

// `count` rows of `inputs` numbers each, `stride` apart, as float32: of 32, those of a lane's first turn and of its second, 16 of
// each row in turn, of `places` rows. What is missing in the last 32 is zero. `MORE_FOLLOW`: other outputs, which are asked for meanwhile.
template <bool MORE_FOLLOW = false, typename Value>
static void pack(const Value* from, int64_t stride, int64_t count, int64_t inputs, float* to, int64_t places) {
  auto chunk = [&](const Value* values, float* place) {
    UNROLLED for (int part = 0; part < PARTS; ++part) {
      *reinterpret_cast<Vector*>(place + WIDTH * part) = widened<false>(values, part);
      *reinterpret_cast<Vector*>(place + places * LANES + WIDTH * part) = widened<true>(values, part);
    }
  };
  for (int64_t row = 0; row < count; ++row) {
    const Value* values = from + row * stride;
    float* place = to + row * LANES;
    int64_t done = 0;
    for (; done + CHUNK <= inputs; done += CHUNK) {
      if (MORE_FOLLOW) __builtin_prefetch(values + OUTPUTS * stride + done, 0, 3);
      chunk(values + done, place + done * places);
    }
    if (done < inputs) {
      Value rest[CHUNK] = {};
      memcpy(rest, values + done, (inputs - done) * sizeof(Value));
      chunk(rest, place + done * places);
    }
  }
}

}  // namespace native
