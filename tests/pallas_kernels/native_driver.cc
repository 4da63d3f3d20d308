// Runs what product.h, coded.h, scaled.h, grouped.h, packed.h, sum_norm.h, threshold.h, argmax.h, write_kv.h, zeros.h and both attentions do on threads of its own, compared with sums in double, for sanitizers to watch.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "argmax.h"
#include "attention.h"
#include "coded.h"
#include "grouped.h"
#include "packed.h"
#include "product.h"
#include "row_attention.h"
#include "scaled.h"
#include "sum_norm.h"
#include "threshold.h"
#include "write_kv.h"
#include "zeros.h"

using namespace native;

static float as_float(uint16_t bfloat16) {
  const uint32_t bits = uint32_t(bfloat16) << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static uint16_t some_bfloat16() { return static_cast<uint16_t>(0x3f00 + rand() % 256 + (rand() % 2 << 15)); }

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

static float number_of(Number number, uint8_t bits) {
  const float magnitude[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const int exponent = (bits & 0x7f) >> (number == Number::float8_e5m2 ? 2 : 3), sign = bits & 0x80 ? -1 : 1;
  switch (number) {
    case Number::int4: return bits - 8;
    case Number::float4: return (bits & 8 ? -1 : 1) * magnitude[bits & 7];
    case Number::int8: return static_cast<int8_t>(bits);
    case Number::float8_e4m3: return sign * std::ldexp((bits & 7) / 8.0 + (exponent > 0), larger(exponent, 1) - 7);
    default: return sign * std::ldexp((bits & 3) / 4.0 + (exponent > 0), larger(exponent, 1) - 15);
  }
}

// Scales, or zeros, as they are kept, and what they are.
struct Factors {
  Factor kept;
  std::vector<float> values;
  std::vector<uint16_t> halves;
  std::vector<uint8_t> bytes;

  Factors(int64_t count, Factor kept, bool zeros) : kept(kept), values(count), halves(count), bytes(count) {
    for (int64_t i = 0; i < count; ++i) {
      bytes[i] = static_cast<uint8_t>(rand()), halves[i] = zeros ? static_cast<uint16_t>(0x4000 + rand() % 64) : some_bfloat16();
      if (kept != Factor::bytes) values[i] = as_float(halves[i]);
      else values[i] = zeros ? static_cast<int8_t>(bytes[i]) / 16.0f : bytes[i];
    }
  }
  const void* data() const {
    return kept == Factor::float32 ? (const void*)values.data() : kept == Factor::bfloat16 ? (const void*)halves.data() : bytes.data();
  }
};

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
  std::vector<float> out(rows * outputs);
  std::vector<uint8_t> weight(outputs * inputs / (paired ? 2 : 1));
  for (auto& value : x) value = some_bfloat16();
  for (auto& byte : weight) byte = static_cast<uint8_t>(paired ? rand() : rand() % 2 << 7 | rand() % 120);
  const Scaled scaled{number, packed, group, groups, kept, scales.data(), with_zeros ? zeros.data() : nullptr};
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
      wrong += !(std::fabs(out[r * outputs + o] - sum) <= (scaled.fixed() ? 1e-6 : 5e-3) * size);  // float8 is rounded to bfloat16
    }
  }
  if (wrong) fprintf(stderr, "scaled %d, %ld x %ld x %ld: %d wrong\n", int(number), long(rows), long(inputs), long(outputs), wrong);
  return wrong;
}

static Number number_of(Element element) {
  switch (element) {
    case Element::int4: return Number::int4;
    case Element::float4: return Number::float4;
    case Element::int8: return Number::int8;
    case Element::float8_e4m3: return Number::float8_e4m3;
    default: return Number::float8_e5m2;
  }
}

// Groups of one row, of none, of many; two rows belong to none. `group` 0: no scales, or with `integers` those of outputs.
static int check_grouped(Element element, int64_t inputs, int64_t outputs, int64_t group, Factor kept, bool with_zeros, bool integers) {
  const std::vector<int32_t> sizes = {1, 0, 14, 200, 6};
  const int64_t groups = sizes.size(), rows = 223, given = row_inputs(inputs), each = line_inputs(element);
  const int64_t scale_inputs = group == 0 ? inputs : group, scale_groups = (inputs + scale_inputs - 1) / scale_inputs;
  const int64_t places = groups * inputs * outputs, count = groups * scale_groups * outputs;
  const Factors scales(count, kept, false), zeros(count, kept, true);
  std::vector<uint16_t> x16(rows * given), w16(places);
  std::vector<float> x32(rows * given), w32(places), row_scales(rows, 0.25f), out(rows * outputs);
  std::vector<int8_t> x8(rows * given);
  std::vector<uint8_t> w8(places / each);
  for (int64_t i = 0; i < rows * given; ++i) {
    if (i % given >= inputs) continue;
    x8[i] = static_cast<int8_t>(rand() % 255 - 127), x16[i] = some_bfloat16();
    x32[i] = integers ? x8[i] : as_float(x16[i]);
  }
  for (auto& value : w16) value = some_bfloat16();
  for (auto& byte : w8) byte = static_cast<uint8_t>(each == 2 || integers ? rand() : rand() % 2 << 7 | rand() % 120);
  for (int64_t i = 0; i < places; ++i) {
    const uint8_t byte = w8[i / (each * outputs) * outputs + i % outputs];
    const uint8_t bits = each == 1 ? byte : i / outputs % 2 ? byte >> 4 : byte & 15;
    w32[i] = element <= Element::bfloat16 ? as_float(w16[i]) : number_of(number_of(element), bits);
  }
  std::vector<uint8_t> scratch(grouped_scratch_bytes(rows, inputs, scale_groups));
  Grouped grouped{element, rows, inputs, outputs, groups};
  grouped.x = integers ? (const void*)x8.data() : element == Element::float32 ? (const void*)x32.data() : x16.data();
  grouped.weights = element == Element::float32 ? (const void*)w32.data() : element == Element::bfloat16 ? (const void*)w16.data() : w8.data();
  grouped.sizes = sizes.data(), grouped.factor = kept, grouped.scale_inputs = scale_inputs, grouped.scale_groups = scale_groups;
  const bool with_scales = group != 0 || integers;
  if (with_scales) grouped.scales = scales.data();
  if (with_zeros) grouped.zeros = zeros.data();
  if (integers) grouped.row_scales = row_scales.data();
  grouped.out = out.data(), grouped.scratch = scratch.data();
  std::vector<std::thread> pool;
  multiply_grouped(grouped, 3, [&](auto&& task) { pool.emplace_back(std::move(task)); });
  for (auto& thread : pool) thread.join();
  int wrong = 0;
  for (int64_t r = 0, own = 0, end = sizes[0]; r < rows - 2; r += r % 50 == 20 ? 17 : 1) {
    while (r >= end) end += sizes[++own];
    for (int64_t o = 0; o < outputs; ++o) {
      double sum = 0, size = 0;
      for (int64_t i = 0; i < inputs; ++i) {
        const int64_t place = (own * scale_groups + i / scale_inputs) * outputs + o;
        const double zero = with_zeros ? zeros.values[place] : 0, scale = with_scales ? scales.values[place] : 1;
        const double number = w32[(own * inputs + i) * outputs + o], row = x32[r * given + i] * (integers ? 0.25 : 1);
        sum += (number - zero) * scale * row, size += (std::fabs(number) + std::fabs(zero)) * std::fabs(scale * row);
      }
      wrong += !(std::fabs(out[r * outputs + o] - sum) <= 1e-5 * size);
    }
  }
  if (wrong) fprintf(stderr, "grouped %d, %ld x %ld, groups of %ld: %d wrong\n", int(element), long(inputs), long(outputs), long(group), wrong);
  return wrong;
}

// Rows of one, of tiles and of none, which begin at 0, 5 and 70; the last two pages of a row's table are not there.
static int check_attention(bool wide, int64_t head_size, int64_t heads, int64_t kv_heads, int64_t window, bool extras, bool later = false) {
  const int64_t page_tokens = 8, row_pages = 20, padding = 3;
  const std::vector<int32_t> counts = {1, 0, 60, 7}, starts = {70, 5, 5, 0};
  std::vector<int32_t> offsets = {0}, table;
  for (int32_t count : counts) offsets.push_back(offsets.back() + count);
  for (int32_t page = 0; page < int32_t(counts.size() * row_pages); ++page) table.push_back(page % row_pages < 18 ? page : 1 << 30);
  const int64_t places = offsets.back() + padding, num_pages = counts.size() * row_pages;
  const int64_t queries = places * heads * head_size, kept = num_pages * page_tokens * 2 * kv_heads * head_size;
  std::vector<uint16_t> q16(queries), pages16(kept);
  std::vector<float> q32(queries), pages32(kept), sinks(heads, 0.3f), slopes(heads, 0.01f), out(queries, NAN);
  for (auto& value : q16) value = some_bfloat16();
  for (auto& value : pages16) value = some_bfloat16();
  for (int64_t i = 0; i < queries; ++i) q32[i] = as_float(q16[i]);
  for (int64_t i = 0; i < kept; ++i) pages32[i] = as_float(pages16[i]);
  Attention a;
  a.places = places, a.heads = heads, a.head_size = head_size, a.kv_heads = kv_heads;
  a.num_pages = num_pages, a.page_tokens = page_tokens, a.rows = counts.size(), a.table_pages = row_pages;
  a.q = wide ? (const void*)q32.data() : q16.data(), a.pages = wide ? (const void*)pages32.data() : pages16.data();
  a.table = table.data(), a.offsets = offsets.data(), a.starts = starts.data();
  a.sinks = extras ? sinks.data() : nullptr, a.slopes = extras ? slopes.data() : nullptr;
  a.scale = 0.2f, a.soft_cap = extras ? 3.0f : 0.0f, a.window = window, a.out = out.data();
  std::vector<int32_t> until(places, 1 << 30);  // those of a row see each other
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int32_t place = offsets[row]; place < offsets[row + 1]; ++place) until[place] = starts[row] + counts[row] - 1;
  }
  if (later) a.until = until.data();
  std::vector<std::thread> pool;
  const auto schedule = [&](auto&& task) { pool.emplace_back(std::move(task)); };
  wide ? attend<float>(a, 3, schedule) : attend<uint16_t>(a, 3, schedule);
  for (auto& thread : pool) thread.join();
  int wrong = 0;
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t token = 0; token < counts[row]; ++token) {
      const int64_t own = starts[row] + token, last = later ? until[offsets[row] + token] : own;
      const int64_t first = window == 0 ? 0 : larger(0, own - window + 1);
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t place = ((offsets[row] + token) * heads + head) * head_size;
        std::vector<double> mixed(head_size);
        double total = extras ? std::exp(0.3) : 0;
        for (int64_t position = first; position <= last; ++position) {
          const int64_t page = table[row * row_pages + position / page_tokens];
          const float* key = &pages32[((page * page_tokens + position % page_tokens) * 2 * kv_heads + head * kv_heads / heads * 2) * head_size];
          double score = 0;
          for (int64_t i = 0; i < head_size; ++i) score += double(q32[place + i]) * key[i];
          score *= a.scale;
          if (extras) score = 3 * std::tanh(score / 3) + 0.01 * double(position - own);
          total += std::exp(score);
          for (int64_t i = 0; i < head_size; ++i) mixed[i] += std::exp(score) * key[head_size + i];
        }
        for (int64_t i = 0; i < head_size; ++i) wrong += !(std::fabs(out[place + i] - mixed[i] / total) <= 1e-4);
      }
    }
  }
  for (int64_t i = offsets.back() * heads * head_size; i < queries; ++i) wrong += out[i] != 0;
  if (wrong) fprintf(stderr, "attention of %ld heads of %ld: %d wrong\n", long(heads), long(head_size), wrong);
  return wrong;
}

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

static int check_sum_norm(int64_t rows, int64_t size) {
  std::vector<float> x(rows * size), y(rows * size, 0.5f), scale(size, 2.0f), bias(size, 0.25f), out(rows * size);
  for (auto& value : x) value = as_float(some_bfloat16());
  std::vector<std::thread> pool;
  const SumNorm of{rows, size, x.data(), y.data(), scale.data(), bias.data(), 0.1f, out.data()};
  sum_norm(of, 3, [&](auto&& task) { pool.emplace_back(std::move(task)); });
  for (auto& thread : pool) thread.join();
  int wrong = 0;
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < size; ++i) mean += (x[r * size + i] + 0.5) / size;
    for (int64_t i = 0; i < size; ++i) variance += std::pow(x[r * size + i] + 0.5 - mean, 2) / size;
    for (int64_t i = 0; i < size; ++i) {
      wrong += !(std::fabs(out[r * size + i] - ((x[r * size + i] + 0.5 - mean) / std::sqrt(variance + 0.1) * 2 + 0.25)) <= 1e-4);
    }
  }
  if (wrong) fprintf(stderr, "norms of %ld: %d wrong\n", long(size), wrong);
  return wrong;
}

// Rows of one token, of none, of several tasks.
static int check_rows(int64_t head_size, int64_t heads, int64_t kv_heads, int64_t window) {
  const std::vector<int32_t> offsets = {0, 1, 1, 201, 270};
  const int64_t places = 273;
  std::vector<float> q(places * heads * head_size), keys(places * kv_heads * head_size), values(keys.size()), out(q.size(), NAN);
  for (std::vector<float>* some : {&q, &keys, &values}) {
    for (auto& value : *some) value = as_float(some_bfloat16());
  }
  RowAttention a;
  a.places = places, a.heads = heads, a.kv_heads = kv_heads, a.head_size = head_size, a.rows = 4, a.window = window;
  a.q = q.data(), a.keys = keys.data(), a.values = values.data(), a.offsets = offsets.data(), a.scale = 0.2f, a.out = out.data();
  std::vector<std::thread> pool;
  attend_rows(a, 3, [&](auto&& task) { pool.emplace_back(std::move(task)); });
  for (auto& thread : pool) thread.join();
  int wrong = 0;
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t token = offsets[row]; token < offsets[row + 1]; ++token) {
      const int64_t first = window < 0 ? offsets[row] : larger(offsets[row], token - window);
      const int64_t last = window < 0 ? offsets[row + 1] : smaller(offsets[row + 1], token + window + 1);
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t place = (token * heads + head) * head_size;
        std::vector<double> mixed(head_size);
        double total = 0;
        for (int64_t key = first; key < last; ++key) {
          const int64_t from = (key * kv_heads + head * kv_heads / heads) * head_size;
          double score = 0;
          for (int64_t i = 0; i < head_size; ++i) score += double(q[place + i]) * keys[from + i];
          const double weight = std::exp(0.2 * score);
          total += weight;
          for (int64_t i = 0; i < head_size; ++i) mixed[i] += weight * values[from + i];
        }
        for (int64_t i = 0; i < head_size; ++i) wrong += !(std::fabs(out[place + i] - mixed[i] / total) <= 1e-4);
      }
    }
  }
  for (size_t i = offsets.back() * heads * head_size; i < out.size(); ++i) wrong += out[i] != 0;
  if (wrong) fprintf(stderr, "attention within rows, %ld heads of %ld: %d wrong\n", long(heads), long(head_size), wrong);
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

template <Kind kind>
static int check_products() {
  int wrong = 0;
  for (int64_t rows : {0, 1, 2, 5, 8, 13, 29, 40}) {
    for (int64_t inputs : {1, 31, 64, 99, 520, 1100}) {
      for (int64_t outputs : {1, 3, 70}) wrong += check<kind>(rows, inputs, outputs, 3);
    }
  }
  return wrong + check<kind>(400, 1600, 5, 3);
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

#if WIDTH == 16
// Rows of any bits come back, and products have the bits of the plain matrix.
static int check_coded(int64_t rows, int64_t inputs, int64_t outputs, int64_t threads) {
  std::vector<uint16_t> x(rows * inputs), plain(outputs * inputs), coded(outputs * (inputs + sizeof(Head) / 2)), again(inputs);
  std::vector<float> wanted(rows * outputs), found(rows * outputs);
  for (auto& value : x) value = some_bfloat16();
  for (auto& value : plain) value = some_bfloat16();
  for (int64_t i = 0; i < inputs; ++i) plain[i] = static_cast<uint16_t>(i % 2 ? i << 7 : 0);  // any number but NaN among zeros
  for (int64_t i = 0; i < inputs && outputs > 1; i += 32) plain[inputs + i] = static_cast<uint16_t>((i / 32 % 24) << 8);
  for (auto& value : plain) value = (value & 0x7f80) == 0x7f80 ? 0 : value;
  const Coded<uint8_t> to{reinterpret_cast<uint8_t*>(coded.data()), outputs, inputs};
  int wrong = 0;
  for (int64_t output = 0; output < outputs; ++output) code_row(plain.data() + output * inputs, to, output);
  const CodedMatrix matrix{to.bytes, outputs, inputs};
  for (int64_t output = 0; output < outputs; ++output) {
    decode_row(matrix, output, again.data());
    wrong += memcmp(again.data(), plain.data() + output * inputs, inputs * sizeof(uint16_t)) != 0;
  }
  std::vector<int32_t> numbers = {-1, 0, static_cast<int32_t>(outputs)};
  std::vector<uint16_t> taken(numbers.size() * inputs);
  std::vector<std::thread> pool;
  const auto schedule = [&](auto&& task) { pool.emplace_back(std::move(task)); };
  take_coded(matrix, numbers.data(), numbers.size(), taken.data(), threads, schedule);
  const uint16_t* last = plain.data() + (outputs - 1) * inputs;
  wrong += memcmp(taken.data(), plain.data(), inputs * sizeof(uint16_t)) != 0;
  wrong += memcmp(taken.data() + 2 * inputs, last, inputs * sizeof(uint16_t)) != 0;
  std::vector<uint8_t> scratch(prepared_bytes(Kind::bfloat16, rows, inputs));
  Product product{Kind::bfloat16, rows, inputs, outputs, x.data(), plain.data(), nullptr, wanted.data(), scratch.data()};
  multiply<Kind::bfloat16>(&product, 1, threads, schedule);
  product.weight = coded.data(), product.out = found.data();
  multiply_coded(&product, 1, threads, schedule);
  wrong += memcmp(found.data(), wanted.data(), found.size() * sizeof(float)) != 0;
  for (auto& thread : pool) thread.join();
  if (wrong > 0) std::fprintf(stderr, "coded: %ld rows of %ld with %ld outputs by %ld threads are wrong\n", rows, inputs, outputs, threads);
  return wrong;
}
#endif

int main() {
  int wrong = 0;
#if WIDTH == 16
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 36, 37, 70}) {
    for (int64_t inputs : {128, 1664}) {
      for (int64_t outputs : {1, 70}) wrong += check_coded(rows, inputs, outputs, 3);
    }
  }
#endif
  for (int64_t threads : {1, 2, 3, 8}) {
    for (int64_t count : {0, 1, 2, 7, 1000}) wrong += check_tasks(count, threads, false) + check_tasks(count, threads, true);
  }
  wrong += check_products<Kind::bfloat16>() + check_products<Kind::float32>() + check_products<Kind::int8>();
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
  for (int64_t inputs : {2, 66, 530}) {
    for (int64_t outputs : {1, 64, 70}) {
      for (Element element : {Element::float32, Element::bfloat16}) {
        for (int64_t odd : {0, 1}) wrong += check_grouped(element, inputs - odd, outputs, 0, Factor::float32, false, false);
      }
      for (int64_t odd : {0, 1}) wrong += check_grouped(Element::int8, inputs - odd, outputs, 0, Factor::float32, false, true);
      for (Element element : {Element::int4, Element::float4, Element::int8, Element::float8_e4m3, Element::float8_e5m2}) {
        for (int64_t group : {32, 200, 530}) {
          const Factor kept = group == 200 ? Factor::float32 : group == 530 ? Factor::bfloat16 : Factor::bytes;
          wrong += check_grouped(element, inputs, outputs, group, kept, inputs > 2, false);
        }
      }
    }
  }
  wrong += check_grouped(Element::float8_e4m3, 99, 1100, 34, Factor::float32, false, false);
  for (bool wide : {false, true}) {
    for (int64_t head_size : {20, 64}) {
      for (int64_t kv_heads : {1, 2}) {
        wrong += check_attention(wide, head_size, 6, kv_heads, 0, false);
        wrong += check_attention(wide, head_size, 6, kv_heads, 9, true);
        wrong += check_attention(wide, head_size, 6, kv_heads, kv_heads == 1 ? 9 : 0, true, true);
      }
    }
  }
  for (bool pairs : {false, true}) {
    for (int64_t rows : {1, 8, 200}) {
      for (Activation activation : {Activation::none, Activation::gelu}) wrong += check_packed(pairs, rows, rows == 8 ? 1100 : 34, activation);
    }
  }
  for (int64_t size : {3, 64, 100}) wrong += check_sum_norm(20, size);
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
  for (int64_t head_size : {20, 32, 80}) {
    wrong += check_rows(head_size, 2, 2, -1);
    wrong += check_rows(head_size, 4, 2, 70);
  }
  if (wrong == 0) puts("all agree");
  return wrong != 0;
}
