// The first of a row's largest values.

#pragma once

#include "product.h"

namespace native {

// values [rows, size], a value at least; out [rows], numbers of values. What is no number is the least, what is above `at_most` that.
struct Argmax {
  int64_t rows, size;
  const float* values;
  float at_most;
  int32_t* out;
};

static int32_t argmax_of_row(const Argmax& of, int64_t row) {
  const float* values = of.values + row * of.size;
  Vector best = Vector{} - __builtin_inff();
  Integers places = {}, numbers;
  for (int i = 0; i < WIDTH; ++i) numbers[i] = i;
  const auto take = [&](Vector some) __attribute__((always_inline)) {
    some = some > of.at_most ? Vector{} + of.at_most : some;
    const Integers better = some > best;  // of what is no number nothing is
    best = better ? some : best, places = better ? numbers : places;
    numbers += WIDTH;
  };
  const int64_t whole = of.size / WIDTH * WIDTH;
  for (int64_t at = 0; at < whole; at += WIDTH) take(*reinterpret_cast<const Vector*>(values + at));
  if (whole < of.size) {
    Vector rest = Vector{} - __builtin_inff();
    take(*static_cast<Vector*>(memcpy(&rest, values + whole, (of.size - whole) * sizeof(float))));
  }
  int found = 0;
  for (int i = 1; i < WIDTH; ++i) {
    if (best[i] > best[found] || (best[i] == best[found] && places[i] < places[found])) found = i;
  }
  return places[found];
}

template <typename Schedule>
void argmax(const Argmax& of, int64_t threads, const Schedule& schedule) {
  const Split tasks(of.rows, larger(1, (256 << 10) / larger(1, of.size)));  // so many rows take longer than to wake a thread
  in_parallel(tasks.count, threads, schedule, [&](int64_t number) {
    Rounding rounding;
    for (int64_t row = tasks.start(number); row < tasks.start(number + 1); ++row) of.out[row] = argmax_of_row(of, row);
  });
}

}  // namespace native
