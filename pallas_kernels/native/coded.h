// Products of rows with matrices in 12 bits a number (`coding.h`): bits are those of the plain matrix, a quarter less is read.

#pragma once

#include "coded_floats.h"
#include "coded_pairs.h"

namespace native {

#if WIDTH == 16
// `count` products of the same rows.
template <typename Schedule>
void multiply_coded(const Product* products, int64_t count, int64_t threads, const Schedule& schedule) {
  multiply_by(products, count, prepare_coded, rows_of_coded(products[0].rows), SIDE, BFLOAT16_OUTPUTS, threads, schedule,
              [](int64_t, const Product& product, int64_t first, int64_t last) { outputs_of_coded(product, first, last); });
}
#endif

}  // namespace native
