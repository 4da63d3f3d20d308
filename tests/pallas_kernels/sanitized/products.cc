// Products of rows with matrices of one kind, and how tasks are shared.

#include <atomic>
#include <functional>

#include "driver.h"

using namespace native;

template <Kind kind>
static int check(int64_t rows, int64_t inputs, int64_t outputs, int64_t threads) {
  std::vector<uint16_t> x16(rows * inputs), w16(outputs * inputs);
  std::vector<float> x32(rows * inputs), w32(outputs * inputs), scales(outputs, 0.5f), out(rows * outputs);
  std::vector<int8_t> w8(outputs * inputs);
  for (auto& value : x16) value = some_bfloat16();
  for (auto& value : w16) value = some_bfloat16();
  for (auto& value : w8) value = static_cast<int8_t>(rand());
  for (size_t i = 0; i < x32.size(); ++i) x32[i] = as_float(x16[i]);
  for (size_t i = 0; i < w32.size(); ++i) w32[i] = as_float(w16[i]);
  std::vector<uint8_t> scratch(prepared_bytes(kind, rows, inputs));
  const void* x = kind == Kind::bfloat16 ? (const void*)x16.data() : x32.data();
  const void* weight = w32.data();
  if (kind == Kind::bfloat16) weight = w16.data();
  if (kind == Kind::int8) weight = w8.data();
  const Product product{kind, rows, inputs, outputs, x, weight, scales.data(), out.data(), scratch.data()};
  std::vector<std::thread> pool;
  multiply<kind>(&product, 1, threads, [&](auto&& task) { pool.emplace_back(std::move(task)); });
  int wrong = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < outputs; ++o) {
      double sum = 0, size = 0;
      for (int64_t i = 0; i < inputs; ++i) {
        const double term = double(x32[r * inputs + i]) * (kind == Kind::int8 ? 0.5 * w8[o * inputs + i] : w32[o * inputs + i]);
        sum += term, size += std::fabs(term);
      }
      wrong += !(std::fabs(out[r * outputs + o] - sum) <= (kind == Kind::int8 ? 2e-2 : 1e-5) * size);
    }
  }
  for (auto& thread : pool) thread.join();
  if (wrong) fprintf(stderr, "kind %d, %ld x %ld x %ld: %d wrong\n", int(kind), long(rows), long(inputs), long(outputs), wrong);
  return wrong;
}

template <Kind kind>
static int check_products() {
  int wrong = 0;
  for (int64_t rows : {0, 1, 2, 5, 8, 13, 29, 40}) {
    for (int64_t inputs : {1, 31, 64, 99, 520, 1100}) {
      for (int64_t outputs : {1, 3, 70}) wrong += check<kind>(rows, inputs, outputs, 3);
    }
  }
  return wrong + check<kind>(400, 1600, 5, 3) + check<kind>(300, 800, 520, 1);  // by one thread: whole tasks
}

// Every task is done once, by threads that come at once, late (`late`: when the caller has done them all), or not at all.
static int check_tasks(int64_t count, int64_t threads, bool late) {
  std::vector<std::atomic<int>> done(count);
  std::vector<std::thread> pool;
  std::vector<std::function<void()>> waiting;
  in_parallel(count, threads, [&](auto&& task) { if (late) waiting.push_back(task); else pool.emplace_back(task); },
              [&](int64_t number) { done[number] += 1; });
  for (auto& task : waiting) task();
  for (auto& thread : pool) thread.join();
  int wrong = 0;
  for (const auto& times : done) wrong += times != 1;
  if (wrong) fprintf(stderr, "%ld tasks of %ld threads: %d not done once\n", long(count), long(threads), wrong);
  return wrong;
}

int main() {
  int wrong = 0;
  for (int64_t threads : {1, 2, 3, 8}) {
    for (int64_t count : {0, 1, 2, 7, 1000}) wrong += check_tasks(count, threads, false) + check_tasks(count, threads, true);
  }
  wrong += check_products<Kind::bfloat16>() + check_products<Kind::float32>() + check_products<Kind::int8>();
  return agreed(wrong);
}
