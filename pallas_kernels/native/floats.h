// Products of rows with matrices of float32, and of bfloat16 that is widened.

#pragma once

#include "float_tile.h"

namespace native {

// Rows of one tile, of `most` at most.
template <typename Value>
static void prepare_tile(const Product& product, int64_t most, int64_t part) {
  const Split rows(product.rows, most);
  const int64_t step = block_of(product.inputs, BLOCK), row = rows.start(part), count = rows.size(part);
  for (int64_t block = 0; block < product.inputs; block += step) {
    const int64_t inputs = smaller(step, product.inputs - block);
    const Value* from = static_cast<const Value*>(product.x) + row * product.inputs + block;
    pack(from, product.inputs, count, inputs, product.prepared_block(block) + row * padded(inputs), count);
  }
}

// The same, of `tile_rows` where they may be `WIDE`.
template <typename Value, bool WIDE = false>
static void prepare_floats(const Product& product, int64_t part) {
  prepare_tile<Value>(product, WIDE ? tile_rows(product.rows) : ROWS, part);
}

// A block of inputs of the outputs [first, last), which lie widened in a panel, and of all rows. Each tile asks for a share of the next
// tile's rows, if they are too many to be in the second cache still.
template <int LEAST>
static void multiply_panel(const Product& product, const Split& rows, const float* panel, int64_t block, int64_t inputs, int64_t first,
                           int64_t last) {
  const int64_t row_size = padded(inputs), tiles_of_outputs = (last - first + OUTPUTS - 1) / OUTPUTS;
  const int64_t lines = rows.total * row_size * int64_t(sizeof(float)) > NEAR_ROWS ? WIDE_ROWS * row_size * int64_t(sizeof(float)) / LINE : 0;
  const int64_t share = (lines + tiles_of_outputs - 1) / tiles_of_outputs;
  for (int64_t part = 0; part < rows.count; ++part) {
    const int64_t row = rows.start(part), count = rows.size(part);
    const float* x = product.prepared_block(block) + row * row_size;
    const char* following = reinterpret_cast<const char*>(x + count * row_size);
    const float* outputs = panel;
    for (int64_t output = first; output < last; output += OUTPUTS, outputs += OUTPUTS * row_size) {
      for (int64_t line = 0; line < share; ++line, following += LINE) __builtin_prefetch(following, 0, 2);
      const Place place{product.out + row * product.outputs + output, product.outputs, smaller(OUTPUTS, last - output), block == 0};
      tiles<LEAST, WIDE_ROWS>(count, Packed{outputs}, x, inputs, place);
    }
  }
}

// Outputs that a block of inputs is multiplied with before another block is: tiles of rows, which take turns, find them in the second cache
// and keep the rows in the first one. Each tile asks for a share of what all of them read next, so that memory never waits.
constexpr int64_t TOGETHER = 32;
// The same of few rows, whose numbers all stay in the first cache meanwhile.
constexpr int64_t GROUP = 16;
static_assert(GROUP % (2 * OUTPUTS) == 0, "only the last group ends with fewer outputs than a tile has");

// Outputs [first, last) of all rows.
template <typename Weight>
static void outputs_of_floats(const Product& product, int64_t first, int64_t last) {
  const Weight* weight = static_cast<const Weight*>(product.weight);
  const int64_t step = block_of(product.inputs, BLOCK);
  const Split rows(product.rows, tile_rows(product.rows));
  auto x = [&](int64_t block, int64_t inputs, int64_t part) {
    return product.prepared_block(block) + rows.start(part) * padded(inputs);
  };
  auto place = [&](int64_t output, int64_t block, int64_t part) {
    float* out = product.out + rows.start(part) * product.outputs + output;
    return Place{out, product.outputs, smaller(OUTPUTS, last - output), block == 0};
  };
  const auto given = [&](int64_t output, int64_t block, auto lines) {
    Given<Weight, lines.value> found;
    for (int q = 0; q < OUTPUTS; ++q) found.outputs[q] = weight + smaller(output + q, last - 1) * product.inputs + block;
    return found;
  };
  const bool few = rows.count <= FEW_TILES;
  if (rows.count == 1 || (few && tile_rows(product.rows) == ROWS)) {  // what follows a group is asked for in the order in which it lies
    for (int64_t group = first, end; group < last; group = end) {
      end = smaller(last, group + GROUP);
      const Weight* following = weight + end * product.inputs;
      for (int64_t block = 0; block < product.inputs; block += step) {
        const int64_t inputs = smaller(step, product.inputs - block);
        for (int64_t part = 0; part < rows.count; ++part) {
          int64_t output = group;
          for (; product.rows == 1 && output + 2 * OUTPUTS <= end; output += 2 * OUTPUTS, following += 2 * OUTPUTS * inputs) {
            const Weight* outputs = weight + output * product.inputs + block;
            wide_tile_of_row(outputs, product.inputs, following, x(block, inputs, 0), inputs, place(output, block, 0));
          }
          for (; output < end; output += OUTPUTS) {
            with_lines<OUTPUTS>(lines_ahead(rows.count, part, OUTPUTS), [&](auto lines) {
              auto found = given(output, block, lines);
              found.following = following;
              following += lines.value * inputs;
              tiles<1, WIDE_ROWS>(rows.size(part), found, x(block, inputs, part), inputs, place(output, block, part));
            });
          }
        }
      }
    }
    return;
  }
  if (few) {
    for (int64_t group = first; group < last; group += TOGETHER) {
      const int64_t end = smaller(last, group + TOGETHER);
      for (int64_t block = 0; block < product.inputs; block += step) {
        const int64_t inputs = smaller(step, product.inputs - block), next = block + step;
        const bool ends = next >= product.inputs;
        const Weight* following = ends ? weight + end * product.inputs : weight + group * product.inputs + next;
        const int64_t lines = (ends ? step : smaller(step, product.inputs - next)) * int64_t(sizeof(Weight)) / LINE;
        for (int64_t part = 0; part < rows.count; ++part) {
          const int64_t from = lines * part / rows.count, to = lines * (part + 1) / rows.count;
          for (int64_t output = group; output < end; output += OUTPUTS) {
            ask_for(following + (output - group) * product.inputs, product.inputs, from, to);
            tiles<WIDE_ROWS / 2, WIDE_ROWS>(rows.size(part), given(output, block, std::integral_constant<int, 0>()),
                                            x(block, inputs, part), inputs, place(output, block, part));
          }
        }
      }
    }
    return;
  }
  alignas(64) float panel[WIDENED_OUTPUTS * BLOCK];
  for (int64_t block = 0; block < product.inputs; block += step) {
    const int64_t inputs = smaller(step, product.inputs - block), size = OUTPUTS * padded(inputs);
    for (int64_t output = first; output < last; output += OUTPUTS) {
      pack<true>(weight + output * product.inputs + block, product.inputs, smaller(OUTPUTS, last - output), inputs,
           panel + (output - first) / OUTPUTS * size, OUTPUTS);
    }
    multiply_panel<WIDE_ROWS - 2>(product, rows, panel, block, inputs, first, last);
  }
}

}  // namespace native
