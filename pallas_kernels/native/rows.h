// Work on rows one by one, by the threads of a pool.

#pragma once

#include "product.h"
#include "threads.h"

namespace native {

// `make(row)` for each row, of so many numbers, by tasks of as many as take longer than to wake a thread.
template <typename Schedule, typename Make>
void for_each_row(int64_t rows, int64_t size, int64_t threads, const Schedule& schedule, const Make& make) {
  const Split tasks(rows, larger(1, (256 << 10) / larger(1, size)));
  in_parallel(tasks.count, threads, schedule, [&](int64_t number) {
    Rounding rounding;
    for (int64_t row = tasks.start(number); row < tasks.start(number + 1); ++row) make(row);
  });
}

}  // namespace native
