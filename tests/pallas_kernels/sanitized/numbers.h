// Numbers of 8 and 4 bits, and what they are multiplied by.

#pragma once

#include "driver.h"
#include "eight_sums.h"
#include "factors.h"

using namespace native;

static float number_of(Number number, uint8_t bits) {
  const float magnitude[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const int exponent = (bits & 0x7f) >> (number == Number::float8_e5m2 ? 2 : 3), sign = bits & 0x80 ? -1 : 1;
  switch (number) {
    case Number::int4: return bits - 8;
    case Number::float4: return (bits & 8 ? -1 : 1) * magnitude[bits & 7];
    case Number::int8: return static_cast<int8_t>(bits);
    case Number::float8_e4m3: return sign * std::ldexp((bits & 7) / 8.0 + (exponent > 0), larger(exponent, 1) - 7);
    default: return sign * std::ldexp((bits & 3) / 4.0 + (exponent > 0), larger(exponent, 1) - 15);
  }
}

// Scales, or zeros, as they are kept, and what they are.
struct Factors {
  Factor kept;
  std::vector<float> values;
  std::vector<uint16_t> halves;
  std::vector<uint8_t> bytes;

  Factors(int64_t count, Factor kept, bool zeros) : kept(kept), values(count), halves(count), bytes(count) {
    for (int64_t i = 0; i < count; ++i) {
      bytes[i] = static_cast<uint8_t>(rand()), halves[i] = zeros ? static_cast<uint16_t>(0x4000 + rand() % 64) : some_bfloat16();
      if (kept != Factor::bytes) values[i] = as_float(halves[i]);
      else values[i] = zeros ? static_cast<int8_t>(bytes[i]) / 16.0f : bytes[i];
    }
  }
  const void* data() const {
    return kept == Factor::float32 ? (const void*)values.data() : kept == Factor::bfloat16 ? (const void*)halves.data() : bytes.data();
  }
};
