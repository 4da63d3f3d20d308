// Products as a custom call of XLA, by the kind of the matrices: each is of the source that is built where it is called.

#pragma once

#include "custom_call.h"
#include "product.h"

namespace native {

// (x, used, weights..., scales...) -> (outs..., scratch): the products of x with each weight, which are of one type. Rows from `used`
// on get zeros.
template <Kind KIND>
ffi::Error multiply_call(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::BufferR0<ffi::S32> used, ffi::RemainingArgs weights,
                    ffi::RemainingRets outs) {
  constexpr ffi::DataType of_weight = KIND == Kind::int8       ? ffi::DataType::S8
                                      : KIND == Kind::float32 ? ffi::DataType::F32
                                                              : ffi::DataType::BF16;
  constexpr ffi::DataType of_rows = KIND == Kind::bfloat16 ? ffi::DataType::BF16 : ffi::DataType::F32;
  const size_t count = weights.size() / 2;
  if (count == 0 || weights.size() != 2 * count || outs.size() != count + 1) {
    return ffi::Error::InvalidArgument("each weight must have scales, perhaps none, and an out; scratch comes last");
  }
  const ffi::AnyBuffer scratch = outs[count];
  std::vector<Product> products(count);
  for (size_t number = 0; number < count; ++number) {
    const ffi::AnyBuffer weight = weights[number], scales = weights[count + number];
    const ffi::AnyBuffer out = outs[number];
    if (x.dimensions().size() != 2 || weight.dimensions().size() != 2 || out.dimensions().size() != 2) {
      return ffi::Error::InvalidArgument("x, weight and out must have two axes");
    }
    Product& product = products[number];
    product.rows = x.dimensions()[0], product.inputs = x.dimensions()[1], product.outputs = weight.dimensions()[0];
    product.kind = KIND;
    const auto needed = static_cast<size_t>(prepared_bytes(product.kind, product.rows, product.inputs) + LINE);
    const bool fits = weight.element_type() == of_weight && weight.dimensions()[1] == product.inputs &&
                      out.dimensions()[0] == product.rows && out.dimensions()[1] == product.outputs &&
                      x.element_type() == of_rows && out.element_type() == ffi::DataType::F32 &&
                      scales.element_type() == ffi::DataType::F32 &&
                      scales.element_count() == static_cast<size_t>(KIND == Kind::int8 ? product.outputs : 0) &&
                      scratch.size_bytes() >= needed;
    if (!fits) return ffi::Error::InvalidArgument("types or extents of x, weight, scales, out or scratch do not fit");
    product.x = x.untyped_data(), product.weight = weight.untyped_data();
    product.scales = static_cast<const float*>(scales.untyped_data());
    product.out = static_cast<float*>(out.untyped_data()), product.prepared = at_line(scratch.untyped_data());
    leave_padding(product, *used.typed_data());
  }
  if (products[0].rows == 0) return ffi::Error::Success();
  multiply<KIND>(products.data(), count, pool.num_threads(), [&](auto&& task) { pool.Schedule(std::move(task)); });
  return ffi::Error::Success();
}

}  // namespace native
