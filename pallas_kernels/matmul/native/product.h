// `x` times the transpose of `weight` on a CPU, by all threads of a pool and the best instructions of the machine.
// Nothing here knows of XLA: `product.cc` does.

#pragma once

#include <stdint.h>
#include <string.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace product {

constexpr int LANES = 16;           // of a sum
constexpr int CHUNK = 2 * LANES;    // inputs that are multiplied at once
constexpr int INTEGER_CHUNK = 64;
constexpr int64_t BLOCK = 512;      // inputs of floating point after which other outputs follow: rows stay in the first cache
constexpr int64_t TASK_BYTES = 256 << 10;  // of a matrix: a task's part stays in the second cache while all rows pass
constexpr int64_t MOST_OUTPUTS = 64;       // of a task
constexpr int64_t FEW_TILES = 2;           // of rows: with so few a matrix is read faster than it is multiplied

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }
inline int64_t padded(int64_t inputs) { return (inputs + INTEGER_CHUNK - 1) / INTEGER_CHUNK * INTEGER_CHUNK; }

// `total` cut into the fewest parts of `most` at most, all about as large.
struct Split {
  int64_t total, count;
  Split(int64_t total, int64_t most) : total(total), count((total + most - 1) / most) {}
  int64_t start(int64_t part) const { return total * part / count; }
  int64_t size(int64_t part) const { return start(part + 1) - start(part); }
};

struct RowScale {
  float scale;
  int32_t sum;
};

enum class Kind { bfloat16, float32, int8 };

// x [rows, inputs], of bfloat16, float32 and float32 by kind; weight [outputs, inputs]; scales [outputs] of int8; out
// [rows, outputs]. `prepared` is scratch of `prepared_bytes`.
struct Product {
  Kind kind;
  int64_t rows, inputs, outputs;
  const void* x;
  const void* weight;
  const float* scales;
  float* out;
  void* prepared;

  // Rows of floating point lie block by block, those of integers whole.
  float* prepared_block(int64_t block) const { return static_cast<float*>(prepared) + rows * block; }
  RowScale* row_scales() const { return static_cast<RowScale*>(prepared); }
  void* prepared_rows() const { return row_scales() + rows; }
};

inline int64_t prepared_bytes(Kind kind, int64_t rows, int64_t inputs) {
  if (kind != Kind::int8) return rows * padded(inputs) * sizeof(float);
  return rows * (sizeof(RowScale) + padded(inputs) * sizeof(int16_t));
}

struct Functions {
  void (*outputs_of_bfloat16)(const Product&, int64_t first, int64_t last);
  void (*outputs_of_float32)(const Product&, int64_t first, int64_t last);
  void (*outputs_of_int8)(const Product&, int64_t first, int64_t last);
  void (*prepare_bfloat16)(const Product&, int64_t row);
  void (*prepare_float32)(const Product&, int64_t row);
  void (*prepare_int8)(const Product&, int64_t row);
};

#if defined(__clang__)
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED _Pragma("GCC unroll 8")
#endif

#define STRING(text) #text
#if defined(__clang__)
#define BEGIN_TARGET(names) \
  _Pragma(STRING(clang attribute push(__attribute__((target(names))), apply_to = function)))
#define END_TARGET _Pragma("clang attribute pop")
#else
#define BEGIN_TARGET(names) _Pragma("GCC push_options") _Pragma(STRING(GCC target(names)))
#define END_TARGET _Pragma("GCC pop_options")
#endif

namespace plain {
#define WIDTH 4
#define VNNI 0
#include "kernels.inc"
#undef VNNI
#undef WIDTH
}  // namespace plain

#if defined(__x86_64__)
BEGIN_TARGET("avx2,fma")
namespace avx2 {
#define WIDTH 8
#define VNNI 0
#include "kernels.inc"
#undef VNNI
#undef WIDTH
}  // namespace avx2
END_TARGET

BEGIN_TARGET("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
namespace avx512 {
#define WIDTH 16
#define VNNI 0
#include "kernels.inc"
#undef VNNI
#undef WIDTH
}  // namespace avx512
END_TARGET

BEGIN_TARGET("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
namespace avx512_vnni {
#define WIDTH 16
#define VNNI 1
#include "kernels.inc"
#undef VNNI
#undef WIDTH
}  // namespace avx512_vnni
END_TARGET
#endif

// Sets of instructions, the better the later. One that this machine lacks is null.
constexpr int LEVELS = 4;

inline const Functions* functions(int level) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (level == 1) return has_avx2 ? &avx2::FUNCTIONS : nullptr;
  if (level == 2) return has_avx512 ? &avx512::FUNCTIONS : nullptr;
  if (level == 3) return has_avx512 && __builtin_cpu_supports("avx512vnni") ? &avx512_vnni::FUNCTIONS : nullptr;
#endif
  return level == 0 ? &plain::FUNCTIONS : nullptr;
}

inline int best_level() {
  static const int best = [] {
    int level = LEVELS - 1;
    while (functions(level) == nullptr) --level;
    return level;
  }();
  return best;
}

// Numbers too small for a normal float are zero, as XLA's own code has them; whatever the thread was set to.
class Rounding {
 public:
#if defined(__x86_64__)
  Rounding() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80 | 0x8040); }
  ~Rounding() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#else
  Rounding() {}
  ~Rounding() {}
#endif
};

// Tasks by number, taken by whoever is free. The caller takes part and waits only for tasks that somebody has begun, so a pool
// whose threads are all busy, or all callers themselves, costs time and never stops.
template <typename Task>
class Shared {
 public:
  Shared(int64_t count, const Task* task) : count_(count), task_(task) {}

  void work() {
    int64_t done = 0;
    for (int64_t number; (number = next_.fetch_add(1, std::memory_order_relaxed)) < count_; ++done) (*task_)(number);
    if (done == 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    done_ += done;
    if (done_ == count_) all_done_.notify_one();
  }

  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [this] { return done_ == count_; });
  }

 private:
  const int64_t count_;
  const Task* const task_;  // of the caller; nobody who comes late looks at it
  std::atomic<int64_t> next_{0};
  int64_t done_ = 0;
  std::mutex mutex_;
  std::condition_variable all_done_;
};

// `schedule(f)` has a thread of the pool call `f` at some time.
template <typename Schedule, typename Task>
void in_parallel(int64_t count, int64_t threads, const Schedule& schedule, const Task& task) {
  if (count <= 1 || threads <= 1) {
    for (int64_t number = 0; number < count; ++number) task(number);
    return;
  }
  auto shared = std::make_shared<Shared<Task>>(count, &task);
  for (int64_t helper = 1; helper < smaller(threads, count); ++helper) schedule([shared] { shared->work(); });
  shared->work();
  shared->wait();
}

template <typename Schedule>
void multiply(const Product& product, const Functions& functions, int64_t threads, const Schedule& schedule) {
  constexpr int64_t SIDE = 4;  // outputs that are multiplied at once, at most
  const bool integers = product.kind == Kind::int8, wide = product.kind == Kind::float32;
  const auto prepare = integers ? functions.prepare_int8 : wide ? functions.prepare_float32 : functions.prepare_bfloat16;
  const auto outputs =
      integers ? functions.outputs_of_int8 : wide ? functions.outputs_of_float32 : functions.outputs_of_bfloat16;

  const int64_t few = larger(1, (16 << 10) / larger(1, product.inputs));  // rows that are prepared before a thread wakes
  const Split preparing(product.rows, few);
  in_parallel(preparing.count, threads, schedule, [&](int64_t part) {
    Rounding rounding;
    const int64_t end = preparing.start(part + 1);
    for (int64_t row = preparing.start(part); row < end; ++row) prepare(product, row);
  });

  const int64_t size = integers ? 1 : wide ? 4 : 2;
  const int64_t fit = larger(SIDE, smaller(MOST_OUTPUTS, TASK_BYTES / larger(1, product.inputs * size) / SIDE * SIDE));
  const int64_t share = (product.outputs + 4 * threads * SIDE - 1) / (4 * threads * SIDE) * SIDE;
  const int64_t task = smaller(fit, share);
  in_parallel((product.outputs + task - 1) / task, threads, schedule, [&](int64_t part) {
    Rounding rounding;
    outputs(product, part * task, smaller(product.outputs, (part + 1) * task));
  });
}

}  // namespace product
