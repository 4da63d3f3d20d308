// Keys and values of new tokens, rounded to what pages hold, into their pages.

#pragma once

#include "float_tile.h"
#include "threads.h"

namespace native {

constexpr int64_t WRITTEN_ALONE = 64 << 10;  // numbers that are written in the time in which a thread wakes, about

// keys and values [tokens, kv_heads, head_size] of float32; pages [places, kv_heads, 2, head_size] of `Value`, where `uint16_t` are bits of
// bfloat16; slots [tokens], places of the pages. What has none of these is left out.
template <typename Value>
struct WriteKv {
  int64_t tokens, kv_heads, head_size, places;
  const float *keys, *values;
  const int32_t* slots;
  Value* pages;
};

// To nearest, ties to even; what is not a number stays none.
INLINE void round_numbers(const float* from, uint16_t* to, int64_t count) {
  int64_t at = 0;
#if BFLOAT16_PAIRS
  for (; at + WIDTH <= count; at += WIDTH) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(from + at)));
  }
#endif
  for (; at < count; ++at) {
    uint32_t bits;
    memcpy(&bits, from + at, sizeof(bits));
    const bool number = (bits & 0x7fffffffu) <= 0x7f800000u;
    to[at] = uint16_t(number ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : bits >> 16 | 0x40);
  }
}
INLINE void round_numbers(const float* from, float* to, int64_t count) { memcpy(to, from, count * sizeof(float)); }

// A task has some heads of all tokens: padding shares a place, which one thread writes then.
template <typename Value, typename Schedule>
void write_kv(const WriteKv<Value>& of, int64_t threads, const Schedule& schedule) {
  const int64_t numbers = of.tokens * of.kv_heads * of.head_size;
  const Split heads(of.kv_heads, numbers < WRITTEN_ALONE ? of.kv_heads : (of.kv_heads + threads - 1) / threads);
  in_parallel(heads.count, threads, schedule, [&](int64_t number) {
    Rounding rounding;
    for (int64_t token = 0; token < of.tokens; ++token) {
      const int64_t slot = of.slots[token];
      if (slot < 0 || slot >= of.places) continue;
      for (int64_t head = heads.start(number); head < heads.start(number + 1); ++head) {
        const int64_t from = (token * of.kv_heads + head) * of.head_size;
        Value* const to = of.pages + (slot * of.kv_heads + head) * 2 * of.head_size;
        round_numbers(of.keys + from, to, of.head_size);
        round_numbers(of.values + from, to + of.head_size, of.head_size);
      }
    }
  });
}

}  // namespace native
