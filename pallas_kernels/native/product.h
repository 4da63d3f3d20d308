// `x` times the transpose of `weight` on a CPU, by all threads of a pool. Nothing here knows of XLA: `decoder.cc` and its like do.

#pragma once

#include <stdint.h>
#include <string.h>

#include <functional>
#include <memory>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace native {

constexpr int LANES = 16;         // of a sum
constexpr int CHUNK = 2 * LANES;  // inputs that are multiplied at once
constexpr int INTEGER_CHUNK = 64;
constexpr int64_t BLOCK = 768;  // inputs of floating point, at most, that are summed before other outputs follow: a tile's rows
                                // and outputs stay in the first cache, a task's outputs in the second
constexpr int64_t MOST_OUTPUTS = 64;       // of a task
constexpr int64_t MOST_ROWS = 192;         // of a task, of rows that need no preparation: they stay in the second cache
constexpr int64_t TASK_BYTES = 256 << 10;  // of a task of integers, whose outputs have all inputs
constexpr int64_t SIDE = 4;                // outputs that are multiplied at once, at most

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }
inline int64_t padded(int64_t inputs) { return (inputs + INTEGER_CHUNK - 1) / INTEGER_CHUNK * INTEGER_CHUNK; }

// `most` or less, so that all blocks of a row are about as large.
inline int64_t block_of(int64_t inputs, int64_t most) {
  const int64_t count = larger(1, (inputs + most - 1) / most);
  return padded((inputs + count - 1) / count);
}

// `total` cut into the fewest parts of `most` at most, all about as large: the first ones have one more. Nothing is divided for a
// part: each tile asks for its own.
struct Split {
  int64_t total, count, each, longer;
  Split(int64_t total, int64_t most)
      : total(total), count((total + most - 1) / most), each(total / larger(1, count)), longer(total - each * count) {}
  int64_t start(int64_t part) const { return part * each + smaller(part, longer); }
  int64_t size(int64_t part) const { return each + (part < longer); }
  // The part that has this place.
  int64_t part_of(int64_t place) const {
    const int64_t in_longer = longer * (each + 1);
    return place < in_longer ? place / (each + 1) : longer + (place - in_longer) / each;
  }
};

struct RowScale {
  float scale;
  int32_t sum;
};

enum class Kind { bfloat16, float32, int8 };

// x [rows, inputs], of bfloat16, float32 and float32 by kind; weight [outputs, inputs]; scales [outputs] of int8; out
// [rows, outputs]. `prepared` is scratch of `prepared_bytes`, best `at_line`.
struct Product {
  Kind kind;
  int64_t rows, inputs, outputs;
  const void* x;
  const void* weight;
  const float* scales;
  float* out;
  void* prepared;

  // Some of the rows, of a kind that is not prepared unless they are all.
  Product of_rows(int64_t first, int64_t count) const {
    if (count == rows) return *this;
    Product some = *this;
    some.rows = count, some.x = static_cast<const uint16_t*>(x) + first * inputs, some.out = out + first * outputs;
    return some;
  }

  // Rows of floating point lie block by block, those of integers whole.
  float* prepared_block(int64_t block) const { return static_cast<float*>(prepared) + rows * block; }
  RowScale* row_scales() const { return static_cast<RowScale*>(prepared); }
  void* prepared_rows() const { return row_scales() + rows; }
};

// Rows from `used` on are padding, of zeros.
inline void leave_padding(Product& product, int64_t used) {
  const int64_t rows = smaller(larger(used, 0), product.rows);
  memset(product.out + rows * product.outputs, 0, (product.rows - rows) * product.outputs * sizeof(float));
  product.rows = rows;
}

inline int64_t prepared_bytes(Kind kind, int64_t rows, int64_t inputs) {
  if (kind != Kind::int8) return rows * padded(inputs) * sizeof(float);
  return rows * (sizeof(RowScale) + padded(inputs) * sizeof(int16_t));
}

constexpr int64_t LINE = 64;  // bytes of a line of the caches: a vector that lies in two is read at half the speed

inline void* at_line(void* scratch) {
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch) + LINE - 1) / LINE * LINE);
}

// Numbers that begin a line of the caches.
template <typename Value>
class InLines {
 public:
  explicit InLines(int64_t count) : lines_(new Line[(count * sizeof(Value) + LINE - 1) / LINE]) {}
  Value* get() const { return reinterpret_cast<Value*>(lines_.get()); }
  Value& operator[](int64_t at) const { return get()[at]; }

 private:
  struct alignas(LINE) Line {
    char bytes[LINE];
  };
  std::unique_ptr<Line[]> lines_;
};

}  // namespace native

#include "bfloat16.h"
#include "integers.h"
#include "threads.h"

namespace native {

typedef std::function<void(const Product&, int64_t)> Prepare;

// `count` products of the same rows, with matrices of one kind. Rows are prepared, `each` of them together, unless there is nothing
// to do; then `outputs(number, product, first, last)` makes outputs of the product with this number, of which a task has `most` at most,
// and unless they are the last ones a multiple of `side`.
template <typename Schedule, typename Outputs>
void multiply_by(const Product* products, int64_t count, const Prepare& prepare, int64_t each, int64_t side, int64_t most,
                 int64_t threads, const Schedule& schedule, const Outputs& outputs) {
  const Product& any = products[0];
  const Split rows(any.rows, each);
  const int64_t few = larger(1, (16 << 10) / larger(1, each * any.inputs));  // that are prepared before a thread wakes
  const Split preparing(rows.count, few);
  in_parallel(prepare == nullptr ? 0 : preparing.count, threads, schedule, [&](int64_t number) {
    Rounding rounding;
    const int64_t end = preparing.start(number + 1);
    for (int64_t part = preparing.start(number); part < end; ++part) prepare(any, part);
  });

  int64_t total = 0;
  for (int64_t of = 0; of < count; ++of) total += products[of].outputs;
  const int64_t share = (total + 4 * threads * side - 1) / (4 * threads * side) * side, task = smaller(most, share);
  const auto tasks_of = [&](const Product& product) { return (product.outputs + task - 1) / task; };
  int64_t tasks = 0;
  for (int64_t of = 0; of < count; ++of) tasks += tasks_of(products[of]);
  const Split groups(any.rows, prepare == nullptr ? MOST_ROWS : larger(1, any.rows));
  in_parallel(groups.count * tasks, threads, schedule, [&](int64_t number) {
    Rounding rounding;
    const int64_t group = number / tasks;
    const Product* product = products;
    for (number %= tasks; number >= tasks_of(*product); ++product) number -= tasks_of(*product);
    const int64_t output = number * task;
    const int64_t last = smaller(product->outputs, output + task);
    outputs(product - products, product->of_rows(groups.start(group), groups.size(group)), output, last);
  });
}

// Products of one kind, which is known while this is compiled: what others take is not built with them.
template <Kind KIND, typename Schedule>
void multiply(const Product* products, int64_t count, int64_t threads, const Schedule& schedule) {
  const Product& any = products[0];
  const int64_t each = KIND == Kind::int8 ? 1 : tile_rows(any.rows);
  int64_t most = KIND == Kind::bfloat16 ? BFLOAT16_OUTPUTS : WIDENED_OUTPUTS;
  if (KIND == Kind::int8) most = larger(SIDE, smaller(MOST_OUTPUTS, TASK_BYTES / larger(1, any.inputs) / SIDE * SIDE));
  Prepare prepare;
  if constexpr (KIND == Kind::int8) prepare = prepare_integers;
  if constexpr (KIND == Kind::float32) prepare = prepare_floats<float, true>;
  if constexpr (KIND == Kind::bfloat16) prepare = prepare_wide_bfloat16;
  multiply_by(products, count, prepare, each, SIDE, most, threads, schedule,
              [](int64_t, const Product& product, int64_t first, int64_t last) {
                if constexpr (KIND == Kind::int8) outputs_of_integers(product, first, last);
                if constexpr (KIND == Kind::float32) outputs_of_floats<float>(product, first, last);
                if constexpr (KIND == Kind::bfloat16) outputs_of_bfloat16(product, first, last);
              });
}

}  // namespace native
