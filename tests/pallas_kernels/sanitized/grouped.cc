// Products of groups of rows, each with a matrix of its own.

#include "grouped.h"
#include "numbers.h"

using namespace native;

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

int main() {
  int wrong = 0;
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
  return agreed(wrong);
}
