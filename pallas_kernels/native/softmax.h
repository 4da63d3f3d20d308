// What attention makes of scores on a CPU: weights of a softmax, in base 2, elementwise.

#pragma once

#include <math.h>

#include "float_tile.h"

namespace native {

constexpr float LOG2_E = 1.44269504f;
constexpr float UNSEEN = -1e30f;           // finite: the largest of no scores stays a number
constexpr int64_t WORTH_WAKING = 1 << 18;  // products of a query's and a key's number, for which other threads are asked

// 2^x elementwise to about a unit in the last place, 0 below the smallest normal number; x is at most 0, or not a number.
INLINE Vector power_of_two(Vector x) {
  const float shift = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to an integer
  const Vector low = Vector{} - 126.0f;
  const Integers there = x >= low;
  const Vector clamped = x < low ? low : x;  // what is no number passes
  const Vector moved = clamped + shift, whole = moved - shift, rest = clamped - whole;
  Vector p = rest * 1.5403530e-4f + 1.33335581e-3f;  // Taylor's: (ln 2)^n / n!
  p = p * rest + 9.61812911e-3f;
  p = p * rest + 5.55041087e-2f;
  p = p * rest + 2.40226507e-1f;
  p = p * rest + 6.93147181e-1f;
  p = p * rest + 1.0f;
  const Integers exponent = (((Integers)moved - 0x4b400000) + 127) << 23;
  const Vector found = p * (Vector)exponent;
  return there | (x != x) ? found : Vector{};
}

INLINE Vector hyperbolic_tangent(Vector x) {
  const Vector magnitude = x < 0 ? -x : x;
  const Vector power = power_of_two(magnitude * (-2 * LOG2_E));
  const Vector found = (1.0f - power) / (1.0f + power);
  return x < 0 ? -found : found;
}

INLINE float largest_of(Vector values) {
  float largest = values[0];
  for (int i = 1; i < WIDTH; ++i) largest = values[i] > largest ? values[i] : largest;
  return largest;
}

INLINE float sum_of(Vector values) {
  float sum = values[0];
  for (int i = 1; i < WIDTH; ++i) sum += values[i];
  return sum;
}

}  // namespace native
