// Norms of rows: by the root mean square, and the layer norm.

#pragma once

#include <math.h>

#include "float_tile.h"
#include "rows.h"

namespace native {

// x and out [rows, size]; scale [size] of float32 or, in `uint16_t`, bits of bfloat16, or null. An `offset` is added to each scale.
template <typename Scale>
struct RmsNorm {
  int64_t rows, size;
  const float* x;
  const Scale* scale;
  float epsilon, offset;
  float* out;
};

// Of x + added; x, added and out [rows, size], or null for added; scale and bias [size] as above, or null.
template <typename Scale>
struct LayerNorm {
  int64_t rows, size;
  const float *x, *added;
  const Scale *scale, *bias;
  float epsilon;
  float* out;
};

INLINE float lanes_of(Vector sum) {
  float total = sum[0];
  for (int i = 1; i < WIDTH; ++i) total += sum[i];
  return total;
}

INLINE Vector vector_of(const float* from) { return *reinterpret_cast<const Vector*>(from); }
INLINE Vector vector_of(const uint16_t* from) { return floats_of(from); }

INLINE float number_of(const float* from) { return *from; }
INLINE float number_of(const uint16_t* from) {
  const uint32_t bits = uint32_t(*from) << 16;
  float number;
  memcpy(&number, &bits, sizeof(number));
  return number;
}

template <typename Scale>
void rms_norm_row(const RmsNorm<Scale>& of, int64_t row) {
  const float* x = of.x + row * of.size;
  float* out = of.out + row * of.size;
  const int64_t whole = of.size / WIDTH * WIDTH;
  Vector squares = {};
  float last = 0;
  for (int64_t at = 0; at < whole; at += WIDTH) squares += vector_of(x + at) * vector_of(x + at);
  for (int64_t at = whole; at < of.size; ++at) last += x[at] * x[at];
  const float factor = 1 / sqrtf((lanes_of(squares) + last) / of.size + of.epsilon);
  for (int64_t at = 0; at < whole; at += WIDTH) {
    Vector found = vector_of(x + at) * factor;
    if (of.scale != nullptr) found *= vector_of(of.scale + at) + of.offset;
    *reinterpret_cast<Vector*>(out + at) = found;
  }
  for (int64_t at = whole; at < of.size; ++at) {
    const float found = x[at] * factor;
    out[at] = of.scale == nullptr ? found : found * (number_of(of.scale + at) + of.offset);
  }
}

template <typename Scale>
void layer_norm_row(const LayerNorm<Scale>& of, int64_t row) {
  const float *x = of.x + row * of.size, *added = of.added == nullptr ? nullptr : of.added + row * of.size;
  float* out = of.out + row * of.size;
  const int64_t whole = of.size / WIDTH * WIDTH;
  Vector sums = {};
  float last = 0;
  for (int64_t at = 0; at < whole; at += WIDTH) {
    const Vector both = added == nullptr ? vector_of(x + at) : vector_of(x + at) + vector_of(added + at);
    *reinterpret_cast<Vector*>(out + at) = both;
    sums += both;
  }
  for (int64_t at = whole; at < of.size; ++at) out[at] = added == nullptr ? x[at] : x[at] + added[at], last += out[at];
  const float mean = (lanes_of(sums) + last) / of.size;
  Vector squares = {};
  last = 0;
  for (int64_t at = 0; at < whole; at += WIDTH) {
    const Vector centred = vector_of(out + at) - mean;
    squares += centred * centred;
  }
  for (int64_t at = whole; at < of.size; ++at) last += (out[at] - mean) * (out[at] - mean);
  const float factor = 1 / sqrtf((lanes_of(squares) + last) / of.size + of.epsilon);
  for (int64_t at = 0; at < whole; at += WIDTH) {
    Vector found = (vector_of(out + at) - mean) * factor;
    if (of.scale != nullptr) found *= vector_of(of.scale + at);
    if (of.bias != nullptr) found += vector_of(of.bias + at);
    *reinterpret_cast<Vector*>(out + at) = found;
  }
  for (int64_t at = whole; at < of.size; ++at) {
    float found = (out[at] - mean) * factor;
    if (of.scale != nullptr) found *= number_of(of.scale + at);
    out[at] = of.bias == nullptr ? found : found + number_of(of.bias + at);
  }
}

template <typename Scale, typename Schedule>
void rms_norm(const RmsNorm<Scale>& of, int64_t threads, const Schedule& schedule) {
  for_each_row(of.rows, of.size, threads, schedule, [&](int64_t row) { rms_norm_row(of, row); });
}

template <typename Scale, typename Schedule>
void layer_norm(const LayerNorm<Scale>& of, int64_t threads, const Schedule& schedule) {
  for_each_row(of.rows, of.size, threads, schedule, [&](int64_t row) { layer_norm_row(of, row); });
}

}  // namespace native
