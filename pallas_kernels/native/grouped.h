// Products of sorted rows, each group of them with a matrix [inputs, outputs] of its own, by all threads of a pool.
//
// The lanes of a vector are outputs, so a sum is that of one input after the other, block by block: of each from zero, and then of
// the blocks. Neither the rows beside it nor the outputs have a say in it. A block has inputs of one group of scales, which
// multiply its sum: what is multiplied are the numbers of the matrix, none of which is rounded.

#pragma once

#include <vector>

#include "panel_tile.h"

namespace native {

constexpr int64_t ROW_PADDING = 4;        // inputs of rows come in fours
constexpr int64_t STRIP = 16;             // panels side by side of a task, at most
constexpr int64_t MOST_GROUP_ROWS = 192;  // of a task: they stay in the second cache

inline int64_t row_inputs(int64_t inputs) { return (inputs + ROW_PADDING - 1) / ROW_PADDING * ROW_PADDING; }

// x [rows, row_inputs(inputs)] of float32 by weights of float32, of int8 with `row_scales`, else of bfloat16; behind `inputs` it is
// zero. `sizes[g]` rows belong to group g. weights [groups, inputs, outputs], of 4 bits [groups, inputs / 2, outputs]. scales and
// zeros [groups, scale_groups, outputs] of type `factor`, of `scale_inputs` inputs each, an even number unless they are all; either may be null. With `row_scales` [rows] scales are [groups, outputs] of float32 and multiply the sum of all inputs.
// out [rows, outputs]; scratch of `grouped_scratch_bytes`.
struct Grouped {
  Element element;
  int64_t rows, inputs, outputs, groups;
  const void *x, *weights;
  const int32_t* sizes;
  Factor factor;
  int64_t scale_inputs, scale_groups;
  const void *scales, *zeros;
  const float* row_scales;
  float* out;
  void* scratch;

  bool integers() const { return row_scales != nullptr; }
  Way way() const {
    if (integers()) return INTEGER_QUADS ? Way::quads : Way::floats;
    return BFLOAT16_PAIRS && element != Element::float32 ? Way::pairs : Way::floats;
  }
  Ending ending() const { return integers() ? Ending::integers : scales != nullptr ? Ending::scaled : Ending::plain; }
  int64_t row_bytes() const { return row_inputs(inputs) * (integers() ? 1 : element == Element::float32 ? 4 : 2); }
  int64_t line_bytes() const { return outputs * element_bytes(element); }
  int64_t lines() const { return (inputs + line_inputs(element) - 1) / line_inputs(element); }

  // Rows of another type are made float32 first, where they are multiplied so.
  bool widened() const { return way() == Way::floats && element != Element::float32; }
  float* wide_rows() const { return static_cast<float*>(scratch); }
  const uint8_t* multiplied() const { return static_cast<const uint8_t*>(widened() ? scratch : x); }
  int64_t stride() const { return widened() ? row_inputs(inputs) * sizeof(float) : row_bytes(); }

  // Sums of rows: 128 times that of all integers, or those of each group of scales.
  int32_t* excess() const { return way() == Way::quads ? static_cast<int32_t*>(scratch) : nullptr; }
  float* group_sums() const { return wide_rows() + (widened() ? rows * row_inputs(inputs) : 0); }
};

inline int64_t grouped_scratch_bytes(int64_t rows, int64_t inputs, int64_t scale_groups) {
  return rows * (row_inputs(inputs) + larger(1, scale_groups)) * sizeof(float);
}

// One row, before it is multiplied.
static void prepare_grouped(const Grouped& grouped, int64_t row) {
  const void* given = static_cast<const uint8_t*>(grouped.x) + row * grouped.row_bytes();
  const auto value = [&](int64_t i) -> float {
    if (grouped.integers()) return static_cast<const int8_t*>(given)[i];
    const uint32_t bits = uint32_t(static_cast<const uint16_t*>(given)[i]) << 16;
    float found;
    memcpy(&found, &bits, sizeof(found));
    return found;
  };
  const int64_t inputs = row_inputs(grouped.inputs);
  if (grouped.widened()) {
    for (int64_t i = 0; i < inputs; ++i) grouped.wide_rows()[row * inputs + i] = value(i);
  }
  if (grouped.excess() != nullptr) {
    int32_t sum = 0;
    for (int64_t i = 0; i < inputs; ++i) sum += static_cast<const int8_t*>(given)[i];
    grouped.excess()[row] = static_cast<int32_t>(128u * static_cast<uint32_t>(sum));
  }
  if (grouped.zeros == nullptr) return;
  for (int64_t group = 0; group < grouped.scale_groups; ++group) {
    const int64_t first = group * grouped.scale_inputs, end = smaller(grouped.inputs, first + grouped.scale_inputs);
    float sum = 0;
    for (int64_t i = first; i < end; ++i) sum += value(i);
    grouped.group_sums()[row * grouped.scale_groups + group] = sum;
  }
}

// Outputs [first, last) of `count` rows of a group, the first of which is `row`.
struct Part {
  int64_t group, row, count, first, last;
};

// What a panel's sums of the block from `input` to `end` need, of a few outputs.
INLINE Block block_for(const Grouped& grouped, const Part& part, int64_t output, int64_t input, int64_t end) {
  Block block;
  block.out = grouped.out + part.row * grouped.outputs + output;
  block.stride = grouped.outputs, block.columns = smaller(COLUMNS, part.last - output);
  block.begin = input == 0, block.end = end == grouped.inputs;
  block.row_sums = nullptr, block.row_sum_stride = grouped.scale_groups;
  if (grouped.integers()) {
    block.row_scales = grouped.row_scales + part.row;
    block.excess = grouped.excess() == nullptr ? nullptr : grouped.excess() + part.row;
    read_factors<false>(grouped.scales, grouped.factor, part.group * grouped.outputs + output, block.columns, block.scales);
  } else if (grouped.scales != nullptr) {
    const int64_t group = input / grouped.scale_inputs;
    const int64_t place = (part.group * grouped.scale_groups + group) * grouped.outputs + output;
    read_factors<false>(grouped.scales, grouped.factor, place, block.columns, block.scales);
    const bool whole = end == smaller(grouped.inputs, (group + 1) * grouped.scale_inputs);
    if (grouped.zeros != nullptr && whole) {  // what they take away goes with the last of a group's blocks
      read_factors<true>(grouped.zeros, grouped.factor, place, block.columns, block.zeros);
      block.row_sums = grouped.group_sums() + part.row * grouped.scale_groups + group;
    }
  }
  return block;
}

static void multiply_part(const Grouped& grouped, const Part& part) {
  const Way way = grouped.way();
  const Fill fill = fill_of(way, grouped.element);
  const Split rows(part.count, ROWS);
  const int64_t bytes = element_bytes(grouped.element), each = line_inputs(grouped.element);
  const int64_t together = step_inputs(way), stride = grouped.line_bytes(), size = (part.last - part.first) * bytes;
  const int64_t scale_inputs = grouped.ending() == Ending::scaled ? grouped.scale_inputs : grouped.inputs;
  const uint8_t* matrix =
      static_cast<const uint8_t*>(grouped.weights) + part.group * grouped.lines() * stride + part.first * bytes;
  Ahead ahead(matrix, size, stride, grouped.lines());
  alignas(64) Vector panel[STEPS * VECTORS];
  alignas(64) uint8_t edge[sizeof(panel)];

  for (int64_t input = 0, end; input < grouped.inputs; input = end) {
    end = smaller(smaller(grouped.inputs, input + STEPS * together), (input / scale_inputs + 1) * scale_inputs);
    const int64_t steps = (end - input + together - 1) / together;
    const int64_t lines = (end - input + each - 1) / each, filled = (steps * together + each - 1) / each;
    if (input == 0) ahead.ask_for(lines * size);
    for (int64_t output = part.first; output < part.last; output += COLUMNS) {
      const Block block = block_for(grouped, part, output, input, end);
      Lines given{matrix + input / each * stride + (output - part.first) * bytes, stride};
      if (block.columns < COLUMNS || lines < filled) {  // a copy of them goes on with zeros
        memset(edge, 0, filled * COLUMNS * bytes);
        for (int64_t line = 0; line < lines; ++line) memcpy(edge + line * COLUMNS * bytes, given.line(line), block.columns * bytes);
        given = Lines{edge, COLUMNS * bytes};
      }
      fill(given, steps, ahead, panel);
      const uint8_t* x = grouped.multiplied() + part.row * grouped.stride() + input * (sizeof(float) / together);
      for (int64_t number = 0; number < rows.count; ++number) {
        const int64_t row = rows.start(number);
        const PanelTile tile = tile_of(way, grouped.ending(), rows.size(number));
        tile(panel, steps, x + row * grouped.stride(), grouped.stride(), block, row);
      }
    }
  }
}

// Rows behind the last group are left as they are.
template <typename Schedule>
void multiply_grouped(const Grouped& grouped, int64_t threads, const Schedule& schedule) {
  std::vector<Part> parts;
  int64_t rows = 0;
  for (int64_t group = 0; group < grouped.groups; ++group) {
    const int64_t count = smaller(larger(0, grouped.sizes[group]), grouped.rows - rows);
    const Split split(count, MOST_GROUP_ROWS);
    for (int64_t part = 0; part < split.count; ++part) parts.push_back({group, rows + split.start(part), split.size(part)});
    rows += count;
  }
  if (parts.empty()) return;

  const bool prepared = grouped.widened() || grouped.excess() != nullptr || grouped.zeros != nullptr;
  const Split preparing(prepared ? rows : 0, larger(1, (16 << 10) / larger(1, grouped.inputs)));
  in_parallel(preparing.count, threads, schedule, [&](int64_t number) {
    Rounding rounding;
    for (int64_t row = preparing.start(number); row < preparing.start(number + 1); ++row) prepare_grouped(grouped, row);
  });

  const int64_t count = parts.size(), panels = (grouped.outputs + COLUMNS - 1) / COLUMNS;
  const int64_t wanted = (4 * threads + count - 1) / count;  // strips of each, so that there is work for all
  const Split strips(panels, smaller(STRIP, larger(1, panels / wanted)));
  in_parallel(count * strips.count, threads, schedule, [&](int64_t number) {
    Rounding rounding;
    Part part = parts[number / strips.count];
    part.first = strips.start(number % strips.count) * COLUMNS;
    part.last = smaller(grouped.outputs, strips.start(number % strips.count + 1) * COLUMNS);
    multiply_part(grouped, part);
  });
}

}  // namespace native
