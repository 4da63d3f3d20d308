// What is done to rows one by one: norms, the largest, thresholds, what is written to pages, zeros.

#include <algorithm>

#include "argmax.h"
#include "driver.h"
#include "norms.h"
#include "rotate.h"
#include "threshold.h"
#include "write_kv.h"
#include "zeros.h"

using namespace native;

template <typename Scale>
static int check_layer_norm(int64_t rows, int64_t size, bool sums) {
  std::vector<float> x(rows * size), added(sums ? rows * size : 0, 0.5f), out(rows * size);
  const bool narrow = sizeof(Scale) == 2;
  std::vector<Scale> scale(size, Scale(narrow ? 0x4000 : 2)), bias(size, Scale(narrow ? 0x3f80 : 1));  // bits of 2 and 1
  for (auto& value : x) value = as_float(some_bfloat16());
  std::vector<std::thread> pool;
  const LayerNorm<Scale> of{rows, size, x.data(), sums ? added.data() : nullptr, scale.data(), bias.data(), 0.1f, out.data()};
  layer_norm(of, 3, [&](auto&& task) { pool.emplace_back(std::move(task)); });
  for (auto& thread : pool) thread.join();
  int wrong = 0;
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < size; ++i) mean += double(x[r * size + i]) / size;
    for (int64_t i = 0; i < size; ++i) variance += std::pow(x[r * size + i] - mean, 2) / size;
    for (int64_t i = 0; i < size; ++i) {
      wrong += !(std::fabs(out[r * size + i] - ((x[r * size + i] - mean) / std::sqrt(variance + 0.1) * 2 + 1)) <= 1e-4);
    }
  }
  if (wrong) fprintf(stderr, "layer norms of %ld: %d wrong\n", long(size), wrong);
  return wrong;
}

template <typename Scale>
static int check_rms_norm(int64_t rows, int64_t size, bool scaled) {
  std::vector<float> x(rows * size), out(rows * size);
  std::vector<Scale> scale(scaled ? size : 0, Scale(sizeof(Scale) == 2 ? 0x4000 : 2));  // bits of 2
  for (auto& value : x) value = as_float(some_bfloat16());
  std::vector<std::thread> pool;
  const RmsNorm<Scale> of{rows, size, x.data(), scaled ? scale.data() : nullptr, 0.1f, 1.0f, out.data()};
  rms_norm(of, 3, [&](auto&& task) { pool.emplace_back(std::move(task)); });
  for (auto& thread : pool) thread.join();
  int wrong = 0;
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t i = 0; i < size; ++i) squares += std::pow(double(x[r * size + i]), 2) / size;
    for (int64_t i = r * size; i < (r + 1) * size; ++i) {
      wrong += !(std::fabs(out[i] - x[i] / std::sqrt(squares + 0.1) * (scaled ? 3 : 1)) <= 1e-5 * std::fabs(out[i]));
    }
  }
  if (wrong) fprintf(stderr, "norms of %ld by the root: %d wrong\n", long(size), wrong);
  return wrong;
}

static int check_rotate(int64_t tokens, int64_t heads, int64_t size) {
  const int64_t half = size / 2;
  std::vector<float> x(tokens * heads * size), out(x.size()), cosines(tokens * half), sines(tokens * half);
  for (auto& value : x) value = as_float(some_bfloat16());
  for (size_t i = 0; i < sines.size(); ++i) cosines[i] = std::cos(i), sines[i] = std::sin(i);
  std::vector<std::thread> pool;
  const Rotate of{tokens, heads, size, x.data(), cosines.data(), sines.data(), out.data()};
  rotate(of, 3, [&](auto&& task) { pool.emplace_back(std::move(task)); });
  for (auto& thread : pool) thread.join();
  int wrong = 0;
  for (int64_t at = 0; at < int64_t(x.size()); ++at) {
    const int64_t channel = at % size, angle = at / (heads * size) * half + channel % half;
    const double partner = channel < half ? -x[at + half] : x[at - half];
    const double expected = double(x[at]) * cosines[angle] + partner * sines[angle];
    wrong += !(std::fabs(out[at] - expected) <= 1e-6 * (std::fabs(x[at]) + std::fabs(partner)));
  }
  if (wrong) fprintf(stderr, "%ld heads of %ld turned: %d wrong\n", long(heads), long(size), wrong);
  return wrong;
}

static int check_argmax(int64_t size) {
  const int64_t rows = 5;
  std::vector<float> values(rows * size);
  for (auto& value : values) value = as_float(some_bfloat16());
  for (int64_t i = size; i < 2 * size; ++i) values[i] = NAN;  // nothing is larger than the first
  values[3 * size - 1] = INFINITY;
  std::vector<int32_t> out(rows, -1);
  const Argmax of{rows, size, values.data(), 1e30f, out.data()};
  std::vector<std::thread> pool;
  argmax(of, 3, [&](auto&& task) { pool.emplace_back(std::move(task)); });
  for (auto& thread : pool) thread.join();
  int wrong = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = values.data() + row * size;
    wrong += out[row] != (row == 1 ? 0 : std::max_element(from, from + size) - from);
  }
  if (wrong) fprintf(stderr, "largest of %ld: %d wrong\n", long(size), wrong);
  return wrong;
}

// Targets that no block's largest value answers, too, and rows of no whole vector.
static int check_threshold(int64_t size, int32_t target, float floor, bool weighed) {
  const int64_t rows = 3;
  std::vector<float> values(rows * size), floors(rows, floor), out(rows, NAN);
  std::vector<int32_t> weights(rows * size), targets(rows, target);
  for (auto& value : values) value = as_float(some_bfloat16());
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = i % 4;
  const Threshold of{rows, size, values.data(), weighed ? weights.data() : nullptr, floors.data(), targets.data(), out.data()};
  std::vector<std::thread> pool;
  find_thresholds(of, 3, [&](auto&& task) { pool.emplace_back(std::move(task)); });
  for (auto& thread : pool) thread.join();
  int wrong = 0;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t all = 0, from = 0, above = 0;
    for (int64_t i = row * size; i < (row + 1) * size; ++i) {
      const int64_t weight = weighed ? weights[i] : 1;
      all += values[i] >= floor ? weight : 0, from += values[i] >= out[row] ? weight : 0, above += values[i] > out[row] ? weight : 0;
    }
    wrong += target < 1 || all < target ? out[row] != floor : !(from >= target && above < target);
  }
  if (wrong) fprintf(stderr, "thresholds of %ld, target %d: %d wrong\n", long(size), int(target), wrong);
  return wrong;
}

// What lies before and behind stays.
static int check_zeros(size_t size) {
  std::vector<char> bytes(size + 2, 7);
  make_zeros(bytes.data() + 1, size);
  int wrong = bytes.front() != 7 || bytes.back() != 7;
  for (size_t i = 1; i <= size; ++i) wrong += bytes[i] != 0;
  if (wrong) fprintf(stderr, "%zu zeros: %d wrong\n", size, wrong);
  return wrong;
}

// Of every third place; every seventh token has none, before or behind all.
template <typename Value>
static int check_written(int64_t tokens, int64_t kv_heads, int64_t head_size) {
  const int64_t places = 3 * tokens, each = kv_heads * head_size;
  std::vector<float> keys(tokens * each), values(tokens * each);
  for (auto& value : keys) value = rand() / 1e6f;
  for (auto& value : values) value = -rand() / 1e6f;
  std::vector<int32_t> slots(tokens);
  for (int64_t token = 0; token < tokens; ++token) slots[token] = token % 7 ? 3 * token : token % 2 ? -1 : places;
  std::vector<Value> pages(places * 2 * each, Value(7));
  std::vector<std::thread> pool;
  const WriteKv<Value> of{tokens, kv_heads, head_size, places, keys.data(), values.data(), slots.data(), pages.data()};
  write_kv(of, 3, [&](auto&& task) { pool.emplace_back(std::move(task)); });
  for (auto& thread : pool) thread.join();
  int wrong = 0;
  for (int64_t at = 0; at < int64_t(pages.size()); ++at) {
    const int64_t place = at / (2 * each), token = place / 3, number = at / head_size % (2 * kv_heads);
    const float from = (number % 2 ? values : keys)[(token * kv_heads + number / 2) * head_size + at % head_size];
    const bool written = place % 3 == 0 && token % 7;
    if (!written) wrong += pages[at] != Value(7);
    else if (sizeof(Value) == 4) wrong += pages[at] != Value(from);
    else wrong += !(std::fabs(as_float(uint16_t(pages[at])) - from) <= std::fabs(from) / 256);
  }
  if (wrong) fprintf(stderr, "%ld tokens of %ld heads of %ld: %d wrong\n", long(tokens), long(kv_heads), long(head_size), wrong);
  return wrong;
}

int main() {
  int wrong = 0;
  for (int64_t size : {3, 64, 100}) wrong += check_layer_norm<float>(20, size, true) + check_layer_norm<uint16_t>(20, size, false);
  for (int64_t size : {3, 100, 64 << 10}) {
    wrong += check_rms_norm<float>(20, size, true) + check_rms_norm<uint16_t>(20, size, true) + check_rms_norm<float>(1, size, false);
  }
  for (int64_t size : {6, 40, 128}) wrong += check_rotate(700, 3, size);
  for (int64_t size : {1, 3, 1000, 150003}) wrong += check_argmax(size);
  for (int64_t size : {3, 1000, 5003}) {
    for (int32_t target : {0, 1, 7, 900, 20000}) {
      for (float floor : {-INFINITY, 0.25f}) wrong += check_threshold(size, target, floor, false) + check_threshold(size, target, floor, true);
    }
  }
  for (size_t size : {0, 1000, 3 << 20, 40 << 20}) wrong += check_zeros(size);
  for (int64_t tokens : {1, 8, 700}) {
    for (int64_t head_size : {20, 64}) wrong += check_written<float>(tokens, 3, head_size) + check_written<uint16_t>(tokens, 3, head_size);
  }
  return agreed(wrong);
}
