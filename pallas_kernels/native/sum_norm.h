// The layer norm of a sum of two rows.

#pragma once

#include <math.h>

#include "float_tile.h"
#include "threads.h"

namespace native {

// x, y and out [rows, size]; scale and bias [size] or null.
struct SumNorm {
  int64_t rows, size;
  const float *x, *y, *scale, *bias;
  float epsilon;
  float* out;
};

INLINE float lanes_of(Vector sum) {
  float total = sum[0];
  for (int i = 1; i < WIDTH; ++i) total += sum[i];
  return total;
}

static void sum_norm_row(const SumNorm& of, int64_t row) {
  const float *x = of.x + row * of.size, *y = of.y + row * of.size;
  float* out = of.out + row * of.size;
  const int64_t whole = of.size / WIDTH * WIDTH, rest = of.size - whole;
  const auto vector = [](const float* from) -> const Vector& { return *reinterpret_cast<const Vector*>(from); };
  Vector sums = {};
  float last = 0;
  for (int64_t at = 0; at < whole; at += WIDTH) {
    const Vector both = vector(x + at) + vector(y + at);
    *reinterpret_cast<Vector*>(out + at) = both;
    sums += both;
  }
  for (int64_t at = whole; at < of.size; ++at) out[at] = x[at] + y[at], last += out[at];
  const float mean = (lanes_of(sums) + last) / of.size;
  Vector squares = {};
  last = 0;
  for (int64_t at = 0; at < whole; at += WIDTH) {
    const Vector centred = vector(out + at) - mean;
    squares += centred * centred;
  }
  for (int64_t at = whole; at < of.size; ++at) last += (out[at] - mean) * (out[at] - mean);
  const float factor = 1 / sqrtf((lanes_of(squares) + last) / of.size + of.epsilon);
  for (int64_t at = 0; at < whole; at += WIDTH) {
    Vector found = (vector(out + at) - mean) * factor;
    if (of.scale != nullptr) found *= vector(of.scale + at);
    if (of.bias != nullptr) found += vector(of.bias + at);
    *reinterpret_cast<Vector*>(out + at) = found;
  }
  for (int64_t at = whole; at < whole + rest; ++at) {
    float found = (out[at] - mean) * factor;
    if (of.scale != nullptr) found *= of.scale[at];
    out[at] = of.bias == nullptr ? found : found + of.bias[at];
  }
}

template <typename Schedule>
void sum_norm(const SumNorm& of, int64_t threads, const Schedule& schedule) {
  const Split tasks(of.rows, larger(1, (256 << 10) / larger(1, of.size)));  // so many rows take longer than to wake a thread
  in_parallel(tasks.count, threads, schedule, [&](int64_t number) {
    Rounding rounding;
    for (int64_t row = tasks.start(number); row < tasks.start(number + 1); ++row) sum_norm_row(of, row);
  });
}

}  // namespace native
