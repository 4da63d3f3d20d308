// `x` times the transpose of `weight` on a CPU, by all threads of a pool. Nothing here knows of XLA: `decoder.cc` and its like do.

#pragma once

#include <functional>

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
