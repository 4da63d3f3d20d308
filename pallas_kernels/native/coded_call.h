// What `coded.h` does as custom calls of XLA.

#pragma once

#include "coded.h"
#include "custom_call.h"
#include "factor_types.h"

namespace native {

#if WIDTH == 16
// Whether an array of bfloat16's size keeps a matrix of so many inputs.
inline bool is_coded(const ffi::AnyBuffer& weight, int64_t inputs) {
  return weight.element_type() == ffi::DataType::U16 && weight.dimensions().size() == 2 && inputs % PIECE == 0 && inputs > 0 &&
         weight.dimensions()[1] == inputs + int64_t(sizeof(Head) / sizeof(uint16_t));
}

// (x, used, weights...) -> (outs..., scratch): the products of x with each weight. Rows from `used` on get zeros.
inline ffi::Error multiply_coded_call(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::BufferR0<ffi::S32> used, ffi::RemainingArgs weights,
                                      ffi::RemainingRets outs) {
  const size_t count = weights.size();
  if (count == 0 || outs.size() != count + 1 || x.dimensions().size() != 2 || x.element_type() != ffi::DataType::BF16) {
    return ffi::Error::InvalidArgument("x must be bfloat16 and have two axes, and each weight an out; scratch comes last");
  }
  const int64_t rows = x.dimensions()[0], kept = smaller(larger(*used.typed_data(), 0), rows);
  const ffi::AnyBuffer scratch = outs[count];
  if (static_cast<int64_t>(scratch.size_bytes()) < prepared_bytes(Kind::bfloat16, rows, x.dimensions()[1]) + LINE) {
    return ffi::Error::InvalidArgument("scratch is too small");
  }
  std::vector<Product> products(count);
  for (size_t number = 0; number < count; ++number) {
    const ffi::AnyBuffer weight = weights[number], out = outs[number];
    Product& product = products[number] = Product{Kind::bfloat16, kept, x.dimensions()[1]};
    if (!is_coded(weight, product.inputs)) return ffi::Error::InvalidArgument("a weight is no coded matrix of x's inputs");
    product.outputs = weight.dimensions()[0];
    if (!is_array(out, ffi::DataType::F32, rows * product.outputs)) return ffi::Error::InvalidArgument("an out does not fit");
    product.x = x.untyped_data(), product.weight = weight.untyped_data(), product.out = static_cast<float*>(out.untyped_data());
    product.prepared = at_line(scratch.untyped_data());
    memset(product.out + kept * product.outputs, 0, (rows - kept) * product.outputs * sizeof(float));
  }
  if (kept == 0) return ffi::Error::Success();
  multiply_coded(products.data(), count, pool.num_threads(), [&](auto&& task) { pool.Schedule(std::move(task)); });
  return ffi::Error::Success();
}

// (numbers, weight) -> out: rows of a matrix.
inline ffi::Error take_coded_call(ffi::ThreadPool pool, ffi::BufferR1<ffi::S32> numbers, ffi::AnyBuffer weight,
                                  ffi::Result<ffi::AnyBuffer> out) {
  const int64_t count = numbers.dimensions()[0], inputs = out->dimensions().size() == 2 ? out->dimensions()[1] : 0;
  if (!is_coded(weight, inputs) || !is_array(*out, ffi::DataType::BF16, count * inputs)) {
    return ffi::Error::InvalidArgument("weight or out do not fit");
  }
  const CodedMatrix matrix{static_cast<const uint8_t*>(weight.untyped_data()), weight.dimensions()[0], inputs};
  take_coded(matrix, numbers.typed_data(), count, static_cast<uint16_t*>(out->untyped_data()), pool.num_threads(),
             [&](auto&& task) { pool.Schedule(std::move(task)); });
  return ffi::Error::Success();
}
#else
inline ffi::Error multiply_coded_call(ffi::ThreadPool, ffi::AnyBuffer, ffi::BufferR0<ffi::S32>, ffi::RemainingArgs, ffi::RemainingRets) {
  return ffi::Error::InvalidArgument("coded matrices are multiplied by vectors of 64 bytes");
}

inline ffi::Error take_coded_call(ffi::ThreadPool, ffi::BufferR1<ffi::S32>, ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer>) {
  return ffi::Error::InvalidArgument("coded matrices are multiplied by vectors of 64 bytes");
}
#endif

}  // namespace native
