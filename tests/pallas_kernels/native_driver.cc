// Runs the products of product.h on threads of its own and compares them with sums in double, for sanitizers to watch.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "product.h"

using namespace product;

static float as_float(uint16_t bfloat16) {
  const uint32_t bits = uint32_t(bfloat16) << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static uint16_t some_bfloat16() { return static_cast<uint16_t>(0x3f00 + rand() % 256 + (rand() % 2 << 15)); }

static int check(Kind kind, int64_t rows, int64_t inputs, int64_t outputs, int64_t threads) {
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
  multiply(product, threads, [&](auto&& task) { pool.emplace_back(std::move(task)); });
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

int main() {
  int wrong = 0;
  for (Kind kind : {Kind::bfloat16, Kind::float32, Kind::int8}) {
    for (int64_t rows : {0, 1, 2, 5, 8, 13, 29, 40}) {
      for (int64_t inputs : {1, 31, 64, 99, 520, 1100}) {
        for (int64_t outputs : {1, 3, 70}) wrong += check(kind, rows, inputs, outputs, 3);
      }
    }
  }
  if (wrong == 0) puts("products agree");
  return wrong != 0;
}
