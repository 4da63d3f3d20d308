// Heads turned by the angles of their positions.

#pragma once

#include "float_tile.h"
#include "rows.h"

namespace native {

// x and out [tokens, heads, size]; cosines and sines [tokens, size / 2]. A channel of the first half is paired with one of the second.
struct Rotate {
  int64_t tokens, heads, size;
  const float *x, *cosines, *sines;
  float* out;
};

static void rotate_token(const Rotate& of, int64_t token) {
  const int64_t half = of.size / 2, whole = half / WIDTH * WIDTH;
  const float *cosines = of.cosines + token * half, *sines = of.sines + token * half;
  const auto vector = [](const float* from) -> const Vector& { return *reinterpret_cast<const Vector*>(from); };
  for (int64_t head = token * of.heads; head < (token + 1) * of.heads; ++head) {
    const float *left = of.x + head * of.size, *right = left + half;
    float *to_left = of.out + head * of.size, *to_right = to_left + half;
    for (int64_t at = 0; at < whole; at += WIDTH) {
      const Vector cosine = vector(cosines + at), sine = vector(sines + at);
      *reinterpret_cast<Vector*>(to_left + at) = vector(left + at) * cosine - vector(right + at) * sine;
      *reinterpret_cast<Vector*>(to_right + at) = vector(right + at) * cosine + vector(left + at) * sine;
    }
    for (int64_t at = whole; at < half; ++at) {
      to_left[at] = left[at] * cosines[at] - right[at] * sines[at];
      to_right[at] = right[at] * cosines[at] + left[at] * sines[at];
    }
  }
}

template <typename Schedule>
void rotate(const Rotate& of, int64_t threads, const Schedule& schedule) {
  for_each_row(of.tokens, of.heads * of.size, threads, schedule, [&](int64_t token) { rotate_token(of, token); });
}

}  // namespace native
