// Products of rows with packed matrices.

#include "driver.h"
#include "packed.h"

using namespace native;

// Two matrices, one with a bias, whose sums go through an activation or do not.
static int check_packed(bool pairs, int64_t rows, int64_t inputs, Activation activation) {
  const int64_t outputs = 2 * COLUMNS_AT_ONCE, few = COLUMNS_AT_ONCE, each = pairs ? 2 : 1;
  std::vector<uint16_t> w16(outputs * inputs);
  std::vector<PairValue> rounded(rows * inputs);
  std::vector<float> x(rows * inputs), w32(outputs * inputs), bias(outputs, 0.25f), out(rows * outputs), other(rows * few);
  for (auto& value : x) value = as_float(some_bfloat16());
  for (size_t i = 0; i < w16.size(); ++i) w16[i] = some_bfloat16(), w32[i] = as_float(w16[i]);
  const float* panels = pairs ? reinterpret_cast<const float*>(w16.data()) : w32.data();
  const PackedProduct product{pairs, rows, inputs, x.data(), rounded.data(), activation};
  std::vector<std::thread> pool;
  const std::vector<PackedMatrix> matrices = {{outputs, panels, bias.data(), out.data()}, {few, panels, nullptr, other.data()}};
  multiply_packed(product, matrices, 3, [&](auto&& task) { pool.emplace_back(std::move(task)); });
  for (auto& thread : pool) thread.join();
  int wrong = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < outputs; ++o) {
      double sum = 0, size = 1;
      for (int64_t i = 0; i < inputs; ++i) {
        const int64_t place = ((o / PANEL * inputs + i / each * each) * PANEL + o % PANEL * each) + i % each;
        sum += double(x[r * inputs + i]) * w32[place], size += std::fabs(double(x[r * inputs + i]) * w32[place]);
      }
      const auto finished = [&](double y) { return activation == Activation::gelu ? y / 2 * (1 + std::erf(y / std::sqrt(2.0))) : y; };
      wrong += !(std::fabs(out[r * outputs + o] - finished(sum + 0.25)) <= 1e-5 * size);
      if (o < few) wrong += !(std::fabs(other[r * few + o] - finished(sum)) <= 1e-5 * size);
    }
  }
  if (wrong) fprintf(stderr, "packed %ld x %ld: %d wrong\n", long(rows), long(inputs), wrong);
  return wrong;
}

int main() {
  int wrong = 0;
  for (bool pairs : {false, true}) {
    for (int64_t rows : {1, 8, 200}) {
      for (Activation activation : {Activation::none, Activation::gelu}) wrong += check_packed(pairs, rows, rows == 8 ? 1100 : 34, activation);
    }
  }
  return agreed(wrong);
}
