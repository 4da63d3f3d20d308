// Products with matrices of 4 or 8 bits a number, scaled by groups of inputs. Of integers and float4 they are those of `fixed.h`. Of
// float8 a few outputs at a time are made bfloat16, which stay in the first cache, and multiplied as any matrix is: sums are those
// of the product with the dense matrix, to the last bit.

#pragma once

#include "fixed_panel.h"

namespace native {

#if BFLOAT16_PAIRS
constexpr int64_t MOST_PANEL = PAIR_BLOCK;  // inputs that are made bfloat16 together: those of a tile
#else
constexpr int64_t MOST_PANEL = BLOCK;
#endif

// To the nearest bfloat16, ties to even: the upper halves.
INLINE Integers rounded(Vector values) {
  const Integers bits = (Integers)values;
  return bits + ((bits >> 16) & 1) + 0x7fff;
}

INLINE Narrow narrowed(Vector values) {
#if BFLOAT16_PAIRS
  return (Narrow)_mm512_cvtneps_pbh((__m512)values);
#else
  const Integers all = values != values ? (Integers)values | 0x400000 : rounded(values);
  return lower_halves((all >> 16) & 0xffff);
#endif
}

// What a group's numbers are, `(number - zero) * scale`.
struct Line {
  float zero, scale;
};

// Those of `count` outputs for the groups [first, end), output by output: in their arrays an output's lie far apart.
NOT_INLINE void gather(const Scaled& scaled, int64_t outputs, int64_t output, int64_t count, int64_t first, int64_t end,
                       Line* lines) {
  const auto at = [&](const void* from, int64_t place) {
    if (scaled.factor == Factor::float32) return static_cast<const float*>(from)[place];
    const uint32_t bits = uint32_t(static_cast<const uint16_t*>(from)[place]) << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
  };
  for (int64_t group = first; group < end; ++group) {
    for (int64_t q = 0; q < count; ++q) {
      const int64_t place = group * outputs + output + q;
      Line& line = lines[q * (end - first) + group - first];
      line.scale = scaled.groups == 0 ? 1 : at(scaled.scales, place);
      line.zero = scaled.groups == 0 || scaled.zeros == nullptr ? 0 : at(scaled.zeros, place);
    }
  }
}

// Numbers of 8 bits as float32.
template <Number NUMBER>
INLINE Vector decoded(const uint8_t* from) {
  if constexpr (NUMBER == Number::int8) return __builtin_convertvector(integers<true>(from), Vector);
  // float8: exponents begin elsewhere; of those that are zero the fraction is a multiple of a power of two
  constexpr bool E4M3 = NUMBER == Number::float8_e4m3;
  const Integers byte = integers<false>(from), magnitude = byte & 0x7f;
  Integers bits = (magnitude << (E4M3 ? 20 : 21)) + ((E4M3 ? 120 : 112) << 23);
  const Vector small = __builtin_convertvector(magnitude, Vector) * (E4M3 ? 1.0f / 512 : 1.0f / 65536);
  bits = magnitude < (E4M3 ? 8 : 4) ? (Integers)small : bits;
  const Integers large = E4M3 ? Integers{} + 0x7fc00000 : (magnitude << 21) | 0x7f800000;
  bits = magnitude >= (E4M3 ? 0x7f : 0x7c) ? large : bits;
  return (Vector)(bits | ((byte & 0x80) << 24));
}

#if BFLOAT16_PAIRS
// float8 times a scale as bfloat16, looked up by their lower seven bits: 32 at once.
struct Magnitudes {
  __m512i values[4];

  template <Number NUMBER>
  static Magnitudes of(float scale) {
    struct Floats {
      alignas(64) float values[128];
      Floats() {
        uint8_t bytes[128];
        for (int i = 0; i < 128; ++i) bytes[i] = static_cast<uint8_t>(i);
        for (int i = 0; i < 128; i += WIDTH) *reinterpret_cast<Vector*>(values + i) = decoded<NUMBER>(bytes + i);
      }
    };
    static const Floats floats;
    Magnitudes all;
    for (int i = 0; i < 4; ++i) {
      const __m512 first = _mm512_load_ps(floats.values + 32 * i), second = _mm512_load_ps(floats.values + 32 * i + 16);
      const __m512 factor = _mm512_set1_ps(scale);
      all.values[i] = (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(second, factor), _mm512_mul_ps(first, factor));
    }
    return all;
  }

  INLINE_MEMBER __m512i look_up(__m256i bytes) const {
    const __m512i words = _mm512_cvtepu8_epi16(bytes);
    const __m512i lower = _mm512_permutex2var_epi16(values[0], words, values[1]);
    const __m512i upper = _mm512_permutex2var_epi16(values[2], words, values[3]);
    const __m512i found = _mm512_mask_mov_epi16(lower, _mm512_test_epi16_mask(words, _mm512_set1_epi16(64)), upper);
    // with the sign turned where bit 7 is set
    return _mm512_ternarylogic_epi32(found, _mm512_slli_epi16(words, 8), _mm512_set1_epi16(-32768), 0x78);
  }
};

// `count` numbers of float8 of an output, all of one group.
INLINE void look_up_bytes(const uint8_t* from, int64_t count, const Magnitudes& given, uint16_t* to) {
  const Magnitudes magnitudes = given;  // in registers
  int64_t done = 0;
  for (; done + CHUNK <= count; done += CHUNK) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + done));
    _mm512_storeu_si512(to + done, magnitudes.look_up(bytes));
  }
  const __mmask32 rest = (__mmask32(1) << (count - done)) - 1;
  if (rest != 0) _mm512_mask_storeu_epi16(to + done, rest, magnitudes.look_up(_mm256_maskz_loadu_epi8(rest, from + done)));
}
#endif

// `count` numbers of 8 bits of an output, all of one group.
template <Number NUMBER>
INLINE void expand_bytes(const uint8_t* from, int64_t count, const Line& line, uint16_t* to) {
  int64_t done = 0;
  const auto some = [&](const uint8_t* bytes, uint16_t* place) __attribute__((always_inline)) {
    *reinterpret_cast<Narrow*>(place) = narrowed((decoded<NUMBER>(bytes) - line.zero) * line.scale);
  };
  for (; done + WIDTH <= count; done += WIDTH) some(from + done, to + done);
  if (done == count) return;
  uint8_t bytes[16] = {};
  uint16_t rest[WIDTH];
  memcpy(bytes, from + done, count - done);
  some(bytes, rest);
  memcpy(to + done, rest, (count - done) * sizeof(uint16_t));
}

// Some inputs of a few outputs as bfloat16: a panel whose outputs are `stride` apart.
struct Panel {
  const Product& product;
  const Scaled& scaled;
  int64_t output, count, block, inputs;
  uint16_t* to;
  int64_t stride;

  const uint8_t* from(int64_t q) const {
    return static_cast<const uint8_t*>(product.weight) + (output + q) * product.inputs + block;
  }
  int64_t group() const { return scaled.groups == 0 ? product.inputs : scaled.group; }
};

// What the next outputs have of the same inputs, asked for in the order in which it lies, as in float_tile.h; into the first cache, in
// which a panel leaves room.
class Following {
 public:
  explicit Following(const Panel& panel)
      : at_(panel.from(OUTPUTS)), inputs_(panel.inputs), skip_(panel.product.inputs - panel.inputs) {}

  // Inlined: compilers leave out calls of functions that only ask.
  INLINE_MEMBER void ask_for(int64_t bytes) {
    for (owed_ += bytes; owed_ >= 64; owed_ -= 64, at_ += 64, done_ += 64) {
      if (done_ >= inputs_) at_ += skip_ - (done_ - inputs_), done_ = 0;
      __builtin_prefetch(at_, 0, 3);
    }
  }

 private:
  const uint8_t* at_;
  const int64_t inputs_, skip_;
  int64_t done_ = 0, owed_ = 0;
};

// A group's numbers of 8 bits. Outputs that have one scale, as in blocks, share a table.
template <Number NUMBER>
INLINE void expand_group(const Panel& panel, Following& following, int64_t done, int64_t some, const Line* lines,
                         int64_t groups) {
#if BFLOAT16_PAIRS
  {
    bool alike = some >= 2 * CHUNK;  // worth a table
    for (int64_t q = 0; q < panel.count; ++q) alike &= lines[q * groups].scale == lines[0].scale && lines[q * groups].zero == 0;
    if (alike) {
      const Magnitudes magnitudes = Magnitudes::of<NUMBER>(lines[0].scale);
      for (int64_t q = 0; q < panel.count; ++q) {
        following.ask_for(some);
        look_up_bytes(panel.from(q) + done, some, magnitudes, panel.to + q * panel.stride + done);
      }
      return;
    }
  }
#endif
  for (int64_t q = 0; q < panel.count; ++q) {
    following.ask_for(some);
    expand_bytes<NUMBER>(panel.from(q) + done, some, lines[q * groups], panel.to + q * panel.stride + done);
  }
}

// Write the panel, group by group.
NOT_INLINE void expand(const Panel& panel) {
  const Scaled& scaled = panel.scaled;
  const int64_t group = panel.group(), first = panel.block / group;
  const int64_t groups = (panel.block + panel.inputs - 1) / group + 1 - first;
  Line lines[OUTPUTS * MOST_PANEL];
  gather(scaled, panel.product.outputs, panel.output, panel.count, first, first + groups, lines);
  Following following(panel);
  int64_t done = 0;
  for (int64_t number = 0; number < groups; ++number) {
    const int64_t some = smaller(panel.inputs, (first + number + 1) * group - panel.block) - done;
    const Line* own = lines + number;
    if (scaled.number == Number::float8_e4m3) {
      expand_group<Number::float8_e4m3>(panel, following, done, some, own, groups);
    } else {
      expand_group<Number::float8_e5m2>(panel, following, done, some, own, groups);
    }
    done += some;
  }
}

// Outputs [first, last) of all rows.
static void outputs_of_scaled(const Product& product, const Scaled& scaled, int64_t first, int64_t last) {
  alignas(64) uint16_t panel[OUTPUTS * MOST_PANEL];
  const int64_t step = block_of(product.inputs, MOST_PANEL);
  const Split rows(product.rows, ROWS);
  for (int64_t output = first; output < last; output += OUTPUTS) {
    const int64_t count = smaller(OUTPUTS, last - output);
    for (int64_t block = 0; block < product.inputs; block += step) {
      const int64_t inputs = smaller(step, product.inputs - block);
      expand({product, scaled, output, count, block, inputs, panel, step});
      for (int64_t part = 0; part < rows.count; ++part) {
        const int64_t row = rows.start(part);
        const Place place{product.out + row * product.outputs + output, product.outputs, count, block == 0};
#if BFLOAT16_PAIRS
        const uint16_t* x = static_cast<const uint16_t*>(product.x) + row * product.inputs + block;
#define TILE(R) case R: tile_of_pairs<R, 0>(panel, nullptr, x, step, product.inputs, inputs, place); break;
        switch (rows.size(part)) { TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) }
#undef TILE
#else
        Given<uint16_t> given;
        for (int q = 0; q < OUTPUTS; ++q) given.outputs[q] = panel + smaller(q, count - 1) * step;
        tiles<1>(rows.size(part), given, product.prepared_block(block) + row * padded(inputs), inputs, place);
#endif
      }
    }
  }
}

// Of scratch that a product takes.
inline int64_t scaled_bytes(int64_t rows, int64_t inputs, const Scaled& scaled) {
  return scaled.fixed() ? fixed_bytes(rows, inputs, scaled) : prepared_bytes(Kind::bfloat16, rows, inputs);
}

// Outputs [first, last) of all rows, times their factors, if there are any.
static void times_factors(const Product& product, const float* factors, int64_t first, int64_t last) {
  if (factors == nullptr) return;
  for (int64_t row = 0; row < product.rows; ++row) {
    float* out = product.out + row * product.outputs;
    int64_t at = first;
    for (; at + WIDTH <= last; at += WIDTH) {
      *reinterpret_cast<Vector*>(out + at) *= *reinterpret_cast<const Vector*>(factors + at);
    }
    for (; at < last; ++at) out[at] *= factors[at];
  }
}

// `count` products of the same rows, each with its numbers' scales and zeros; numbers and groups are alike, and so they lie.
template <typename Schedule>
void multiply_scaled(const Product* products, const Scaled* scaled, int64_t count, int64_t threads, const Schedule& schedule) {
  const bool fixed = scaled[0].fixed();
  const auto outputs = fixed ? outputs_of_fixed : outputs_of_scaled;
  Prepare prepare = prepare_bfloat16;
  if (fixed) prepare = [&](const Product& of, int64_t row) { prepare_fixed(of, scaled[0], row); };
  multiply_by(products, count, prepare, fixed ? 1 : ROWS, scaled[0].packed ? PACKED_OUTPUTS : SIDE, MOST_OUTPUTS, threads, schedule,
              [&](int64_t number, const Product& some, int64_t first, int64_t last) {
                outputs(some, scaled[number], first, last);
                times_factors(some, scaled[number].factors, first, last);
              });
}

}  // namespace native
