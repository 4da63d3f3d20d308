// Products of rows with matrices of 8 or 4 bits and their scales.

#include "numbers.h"
#include "scaled.h"

using namespace native;

// What a row stands for beside numbers of 4 bits: of each block of a group the nearest of 127 steps of its largest.
static std::vector<double> in_steps(const std::vector<uint16_t>& x, int64_t rows, int64_t inputs, int64_t group) {
  std::vector<double> found(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t first = 0, end; first < inputs; first = end) {
      end = smaller(first + 128, smaller(inputs, first / group * group + group));
      float most = 0;
      for (int64_t i = first; i < end; ++i) most = std::fmax(most, std::fabs(as_float(x[r * inputs + i])));
      for (int64_t i = first; i < end; ++i) {
        found[r * inputs + i] = most == 0 ? 0 : std::nearbyint(double(127.0f / most) * as_float(x[r * inputs + i])) * most / 127;
      }
    }
  }
  return found;
}

// What is no number is left out.
static int check_scaled(Number number, int64_t rows, int64_t inputs, int64_t outputs, int64_t group, Factor kept, bool with_zeros,
                        bool packed = false) {
  const bool paired = number == Number::int4 || number == Number::float4;
  const int64_t groups = group == 0 ? 0 : (inputs + group - 1) / group, count = groups * outputs;
  const Factors scales(count, kept, false), zeros(count, kept, true);
  std::vector<uint16_t> x(rows * inputs);
  std::vector<float> out(rows * outputs), factors(with_zeros ? outputs : 0);
  std::vector<uint8_t> weight(outputs * inputs / (paired ? 2 : 1));
  for (auto& value : x) value = some_bfloat16();
  for (auto& byte : weight) byte = static_cast<uint8_t>(paired ? rand() : rand() % 2 << 7 | rand() % 120);
  for (int64_t o = 0; o < int64_t(factors.size()); ++o) factors[o] = 1.0f + o % 3;
  const Scaled scaled{number, packed, group, groups, kept, scales.data(), with_zeros ? zeros.data() : nullptr,
                      factors.empty() ? nullptr : factors.data()};
  std::vector<uint8_t> scratch(scaled_bytes(rows, inputs, scaled));
  const Product product{Kind::bfloat16, rows, inputs, outputs, x.data(), weight.data(), nullptr, out.data(), scratch.data()};
  std::vector<std::thread> pool;
  multiply_scaled(&product, &scaled, 1, 3, [&](auto&& task) { pool.emplace_back(std::move(task)); });
  for (auto& thread : pool) thread.join();
  std::vector<double> given(x.size());
  for (size_t i = 0; i < x.size(); ++i) given[i] = as_float(x[i]);
  if (paired) given = in_steps(x, rows, inputs, group == 0 ? inputs : group);
  int wrong = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < outputs; ++o) {
      double sum = 0, size = 0;
      for (int64_t i = 0; i < inputs; ++i) {
        const int64_t line = paired ? o / 2 : o;
        const uint8_t byte = weight[packed ? line / 8 * 8 * inputs + i / 4 * 32 + line % 8 * 4 + i % 4 : line * inputs + i];
        double value = number_of(number, !paired ? byte : o % 2 ? byte >> 4 : byte & 15);
        const double most = scaled.fixed() ? std::fabs(value) + 16 : 0, scale = groups == 0 ? 1 : scales.values[i / group * outputs + o];
        value = (value - (groups != 0 && with_zeros ? zeros.values[i / group * outputs + o] : 0)) * scale;
        const double row = given[r * inputs + i];
        sum += value * row, size += std::fabs(row) * (std::fabs(value) + most * std::fabs(scale));
      }
      if (with_zeros) sum *= factors[o], size *= factors[o];
      wrong += !(std::fabs(out[r * outputs + o] - sum) <= (scaled.fixed() ? 1e-6 : 5e-3) * size);  // float8 is rounded to bfloat16
    }
  }
  if (wrong) fprintf(stderr, "scaled %d, %ld x %ld x %ld: %d wrong\n", int(number), long(rows), long(inputs), long(outputs), wrong);
  return wrong;
}

int main() {
  int wrong = 0;
  for (Number number : {Number::int4, Number::float4, Number::int8, Number::float8_e4m3, Number::float8_e5m2}) {
    for (int64_t rows : {1, 3, 4, 13}) {
      for (int64_t inputs : {1, 31, 99, 1600}) {
        for (int64_t group : {0, 1, 32, 100}) {
          const bool bytes = rows == 13 && number <= Number::int8;  // which float8 does not have
          const Factor kept = bytes ? Factor::bytes : rows == 3 ? Factor::float32 : Factor::bfloat16;
          for (int64_t outputs : {2, 6, 70}) wrong += check_scaled(number, rows, inputs, outputs, group, kept, rows > 1);
        }
      }
    }
    if (number > Number::float4) wrong += check_scaled(number, 2, 99, 3, 32, Factor::float32, true);
    if (number > Number::float4) continue;
    for (int64_t rows : {1, 3, 13}) {
      for (int64_t inputs : {4, 100, 1600}) {
        for (int64_t group : {0, 32, 100}) {
          const Factor kept = rows == 13 ? Factor::bytes : Factor::bfloat16;
          for (int64_t outputs : {16, 240}) wrong += check_scaled(number, rows, inputs, outputs, group, kept, rows > 1, true);
        }
      }
    }
  }
  return agreed(wrong);
}
