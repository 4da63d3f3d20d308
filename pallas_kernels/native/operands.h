// What products of rows with a matrix are told, and how they are cut into blocks, tiles and tasks.

#pragma once

#include <stdint.h>
#include <string.h>

#include <memory>

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
