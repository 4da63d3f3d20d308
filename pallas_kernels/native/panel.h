// Some inputs of a matrix [inputs, outputs] as they are multiplied: a panel, whose lanes are outputs.
//
// A panel has steps. A lane of a step is what is multiplied at once: a float32, two bfloat16 or four bytes, of as many inputs.

#pragma once

#include "scaled.h"

namespace native {

constexpr int VECTORS = 4;                // of a step
constexpr int COLUMNS = VECTORS * WIDTH;  // outputs of a panel
constexpr int64_t STEPS = 64;             // of a panel, at most: with 64 outputs it takes half of a first cache

// What is multiplied at once by a lane: a float32, two bfloat16 or four bytes.
enum class Way { floats, pairs, quads };

inline int64_t step_inputs(Way way) { return way == Way::quads ? 4 : way == Way::pairs ? 2 : 1; }

enum class Element { float32, bfloat16, int4, float4, int8, float8_e4m3, float8_e5m2 };

// A matrix is lines of as many inputs, one after the other, of as many bytes an output. Of 4 bits a line has two inputs, the first in
// the low bits.
constexpr int64_t line_inputs(Element element) { return element == Element::int4 || element == Element::float4 ? 2 : 1; }
constexpr int64_t element_bytes(Element element) {
  return element == Element::float32 ? 4 : element == Element::bfloat16 ? 2 : 1;
}

// Lines of a matrix, `stride` bytes apart, with `COLUMNS` outputs each.
struct Lines {
  const uint8_t* from;
  int64_t stride;

  const uint8_t* line(int64_t number) const { return from + number * stride; }
};

// Memory delivers in order, and a panel is read across it. So what comes behind is asked for meanwhile, a little beside each step, in
// the order in which it lies: `size` bytes of each of `lines` lines, into the second cache.
class Ahead {
 public:
  Ahead(const uint8_t* at, int64_t size, int64_t stride, int64_t lines)
      : at_(at), size_(size), stride_(stride), lines_(lines) {}

  // Inlined: compilers leave out calls of functions that only ask.
  INLINE_MEMBER void ask_for(int64_t bytes) {
    for (; bytes > 0 && lines_ > 0; bytes -= 64) {
      __builtin_prefetch(at_ + done_, 0, 2);
      if ((done_ += 64) >= size_) at_ += stride_, done_ = 0, --lines_;
    }
  }

 private:
  const uint8_t* at_;
  const int64_t size_, stride_;
  int64_t lines_, done_ = 0;
};

// What scaled.h calls it.
template <Element ELEMENT>
constexpr Number number_of_element() {
  switch (ELEMENT) {
    case Element::int4: return Number::int4;
    case Element::float4: return Number::float4;
    case Element::float8_e4m3: return Number::float8_e4m3;
    case Element::float8_e5m2: return Number::float8_e5m2;
    default: return Number::int8;
  }
}

// What 16 numbers of 4 bits are.
template <Element ELEMENT>
INLINE const float* four_bits() {
  alignas(64) static const float integers[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
  alignas(64) static const float floats[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0f, -0.5, -1, -1.5, -2, -3, -4, -6};
  return ELEMENT == Element::int4 ? integers : floats;
}

// The lines of `steps` steps of one input each, as float32.
template <Element ELEMENT>
NOT_INLINE void fill_floats(const Lines& lines, int64_t steps, Ahead& ahead, Vector* panel) {
  constexpr int64_t BYTES = COLUMNS * element_bytes(ELEMENT) / line_inputs(ELEMENT);
  if constexpr (line_inputs(ELEMENT) == 2) {
    const float* values = four_bits<ELEMENT>();
    for (int64_t step = 0; step < steps; ++step) {
      ahead.ask_for(BYTES);
      const uint8_t* line = lines.line(step / 2);
      float* to = reinterpret_cast<float*>(panel + step * VECTORS);
      for (int q = 0; q < COLUMNS; ++q) to[q] = values[step % 2 ? line[q] >> 4 : line[q] & 15];
    }
  } else {
    for (int64_t step = 0; step < steps; ++step) {
      ahead.ask_for(BYTES);
      const uint8_t* line = lines.line(step);
      UNROLLED for (int v = 0; v < VECTORS; ++v) {
        Vector& to = panel[step * VECTORS + v];
        if constexpr (ELEMENT == Element::float32) {
          to = *reinterpret_cast<const Vector*>(line + 4 * WIDTH * v);
        } else if constexpr (ELEMENT == Element::bfloat16) {
          to = floats_of(reinterpret_cast<const uint16_t*>(line) + WIDTH * v);
        } else {
          to = decoded<number_of_element<ELEMENT>()>(line + WIDTH * v);
        }
      }
    }
  }
}

#if BFLOAT16_PAIRS
// 32 outputs' numbers of an input as bfloat16.
template <Element ELEMENT>
INLINE __m512i words_of(const uint8_t* from, const Magnitudes& magnitudes) {
  if constexpr (ELEMENT == Element::bfloat16) return _mm512_loadu_si512(from);
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  if constexpr (ELEMENT != Element::int8) return magnitudes.look_up(bytes);
  const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes)));
  const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1)));
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

// `steps` steps of two inputs each, as bfloat16.
template <Element ELEMENT>
NOT_INLINE void fill_pairs(const Lines& lines, int64_t steps, Ahead& ahead, Vector* panel) {
  constexpr int64_t BYTES = 2 * COLUMNS * element_bytes(ELEMENT) / line_inputs(ELEMENT);
  // Words of one input and of the next in turn: those of the first 16 outputs, of the others.
  const __m512i first = _mm512_set_epi64(0x002f000f002e000e, 0x002d000d002c000c, 0x002b000b002a000a, 0x0029000900280008,
                                         0x0027000700260006, 0x0025000500240004, 0x0023000300220002, 0x0021000100200000);
  const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
  const auto store = [&](__m512i even, __m512i odd, Vector* to) __attribute__((always_inline)) {
    _mm512_store_si512(to, _mm512_permutex2var_epi16(even, first, odd));
    _mm512_store_si512(to + 1, _mm512_permutex2var_epi16(even, second, odd));
  };
  if constexpr (line_inputs(ELEMENT) == 2) {
    // There twice: an index has five bits, of which the fifth is the other number's.
    const __m512i values = _mm512_broadcast_i64x4((__m256i)narrowed(*reinterpret_cast<const Vector*>(four_bits<ELEMENT>())));
    for (int64_t step = 0; step < steps; ++step) {
      ahead.ask_for(BYTES);
      UNROLLED for (int v = 0; v < VECTORS; v += 2) {
        const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lines.line(step) + WIDTH * v));
        const __m512i words = _mm512_cvtepu8_epi16(bytes);
        const __m512i odd = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), values);
        store(_mm512_permutexvar_epi16(words, values), odd, panel + step * VECTORS + v);
      }
    }
  } else {
    const Magnitudes magnitudes = Magnitudes::of<number_of_element<ELEMENT>()>(1);
    for (int64_t step = 0; step < steps; ++step) {
      ahead.ask_for(BYTES);
      UNROLLED for (int v = 0; v < VECTORS; v += 2) {
        const int64_t place = element_bytes(ELEMENT) * WIDTH * v;
        const __m512i even = words_of<ELEMENT>(lines.line(2 * step) + place, magnitudes);
        store(even, words_of<ELEMENT>(lines.line(2 * step + 1) + place, magnitudes), panel + step * VECTORS + v);
      }
    }
  }
}
#endif

#if INTEGER_QUADS
// `steps` steps of four inputs each, as bytes with 128 added.
NOT_INLINE void fill_quads(const Lines& lines, int64_t steps, Ahead& ahead, Vector* panel) {
  const __m512i sign = _mm512_set1_epi8(-128);
  for (int64_t step = 0; step < steps; ++step) {
    ahead.ask_for(4 * COLUMNS);
    const auto line = [&](int number) { return _mm512_xor_si512(_mm512_loadu_si512(lines.line(4 * step + number)), sign); };
    const __m512i a = line(0), b = line(1), c = line(2), d = line(3);
    const __m512i ab = _mm512_unpacklo_epi8(a, b), cd = _mm512_unpacklo_epi8(c, d);
    const __m512i ab_after = _mm512_unpackhi_epi8(a, b), cd_after = _mm512_unpackhi_epi8(c, d);
    // Of every 16 outputs four each; then all four of the same 16 together.
    const __m512i p = _mm512_unpacklo_epi16(ab, cd), q = _mm512_unpackhi_epi16(ab, cd);
    const __m512i r = _mm512_unpacklo_epi16(ab_after, cd_after), s = _mm512_unpackhi_epi16(ab_after, cd_after);
    const __m512i pq = _mm512_shuffle_i32x4(p, q, 0x44), rs = _mm512_shuffle_i32x4(r, s, 0x44);
    const __m512i pq_after = _mm512_shuffle_i32x4(p, q, 0xee), rs_after = _mm512_shuffle_i32x4(r, s, 0xee);
    Vector* to = panel + step * VECTORS;
    _mm512_store_si512(to, _mm512_shuffle_i32x4(pq, rs, 0x88));
    _mm512_store_si512(to + 1, _mm512_shuffle_i32x4(pq, rs, 0xdd));
    _mm512_store_si512(to + 2, _mm512_shuffle_i32x4(pq_after, rs_after, 0x88));
    _mm512_store_si512(to + 3, _mm512_shuffle_i32x4(pq_after, rs_after, 0xdd));
  }
}
#endif

typedef void (*Fill)(const Lines&, int64_t, Ahead&, Vector*);

static Fill fill_of(Way way, Element element) {
#if INTEGER_QUADS
  if (way == Way::quads) return fill_quads;
#endif
#if BFLOAT16_PAIRS
#define FILL(ELEMENT) \
  case Element::ELEMENT: return way == Way::pairs ? fill_pairs<Element::ELEMENT> : fill_floats<Element::ELEMENT>;
#else
#define FILL(ELEMENT) case Element::ELEMENT: return fill_floats<Element::ELEMENT>;
#endif
  switch (element) {
    FILL(bfloat16) FILL(int4) FILL(float4) FILL(int8) FILL(float8_e4m3) FILL(float8_e5m2)
    default: return fill_floats<Element::float32>;
  }
#undef FILL
}

}  // namespace native
