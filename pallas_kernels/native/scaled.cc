// What `scaled.h` and `fixed.h` do as a custom call of XLA.

#include "factor_types.h"
#include "product.h"
#include "scaled.h"

#include "custom_call.h"

namespace ffi = native::ffi;

namespace {

bool number_of(ffi::DataType type, bool float4, native::Number& number) {
  switch (type) {
    case ffi::DataType::U8:
      number = float4 ? native::Number::float4 : native::Number::int4;
      return true;
    case ffi::DataType::S8:
      number = native::Number::int8;
      return true;
    case ffi::DataType::F8E4M3FN:
      number = native::Number::float8_e4m3;
      return true;
    case ffi::DataType::F8E5M2:
      number = native::Number::float8_e5m2;
      return true;
    default:
      return false;
  }
}

// (x, used, weights..., scales..., zeros..., factors...) -> (outs..., scratch): the products of x with each weight, which are of one
// type, all with scales or all without. Rows from `used` on get zeros. `float4`: what numbers of 4 bits are, if they are no integers.
ffi::Error multiply_scaled(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::BufferR0<ffi::S32> used, ffi::RemainingArgs weights,
                           ffi::RemainingRets outs, int64_t group, bool float4) {
  const size_t count = weights.size() / 4;
  if (count == 0 || weights.size() != 4 * count || outs.size() != count + 1) {
    return ffi::Error::InvalidArgument("each weight must have scales, zeros, factors, perhaps none, and an out; scratch comes last");
  }
  const ffi::AnyBuffer scratch = outs[count];
  std::vector<native::Product> products(count);
  std::vector<native::Scaled> all(count);
  for (size_t number = 0; number < count; ++number) {
    const ffi::AnyBuffer weight = weights[number], scales = weights[count + number];
    const ffi::AnyBuffer zeros = weights[2 * count + number];
    const ffi::AnyBuffer factors = weights[3 * count + number], out = outs[number];
    const bool packed = weight.dimensions().size() == 4;
    if (x.dimensions().size() != 2 || (weight.dimensions().size() != 2 && !packed) || out.dimensions().size() != 2) {
      return ffi::Error::InvalidArgument("x, weight and out must have two axes, or weight four");
    }
    native::Scaled& scaled = all[number];
    if (!number_of(weight.element_type(), float4, scaled.number)) {
      return ffi::Error::InvalidArgument("weight must be of uint8, int8, float8_e4m3fn or float8_e5m2");
    }
    native::Product& product = products[number];
    product.kind = native::Kind::bfloat16;
    product.rows = x.dimensions()[0], product.inputs = x.dimensions()[1];
    scaled.packed = packed;
    product.outputs = weight.dimensions()[0] * (packed ? native::PACKED_OUTPUTS : scaled.paired() ? 2 : 1);
    const int64_t inputs = weight.dimensions()[1] * (packed ? native::PACKED_INPUTS : 1);
    const bool lies = !packed || (scaled.paired() && weight.dimensions()[2] == native::PACKED_LINES &&
                                  weight.dimensions()[3] == native::PACKED_INPUTS &&
                                  (group % native::PACKED_INPUTS == 0 || group >= inputs));
    const bool plain = scales.element_count() == 0;
    scaled.group = group, scaled.groups = plain || group < 1 ? 0 : (product.inputs + group - 1) / group;
    scaled.scales = scales.untyped_data(), scaled.zeros = zeros.element_count() == 0 ? nullptr : zeros.untyped_data();
    scaled.factors = factors.element_count() == 0 ? nullptr : static_cast<const float*>(factors.untyped_data());
    const ffi::DataType of_scales = scales.element_type();
    const int64_t of_groups = scaled.groups * product.outputs;
    const bool known = native::find_factor(of_scales, scaled.factor) &&
                       (scaled.fixed() || scaled.factor != native::Factor::bytes);
    const auto needed = static_cast<size_t>(native::scaled_bytes(product.rows, product.inputs, scaled) + native::LINE);
    const bool fits = group > 0 && known && lies && scaled.number == all[0].number && scaled.groups == all[0].groups &&
                      packed == all[0].packed &&
                      is_array(scales, of_scales, of_groups) &&
                      (scaled.zeros == nullptr || is_array(zeros, native::type_of_zeros(of_scales), of_groups)) &&
                      (scaled.factors == nullptr || is_array(factors, ffi::DataType::F32, product.outputs)) &&
                      inputs == product.inputs &&
                      out.dimensions()[0] == product.rows && out.dimensions()[1] == product.outputs &&
                      x.element_type() == ffi::DataType::BF16 && out.element_type() == ffi::DataType::F32 &&
                      scratch.size_bytes() >= needed;
    if (!fits) return ffi::Error::InvalidArgument("types or extents of x, weight, scales, zeros, factors, out or scratch do not fit");
    product.x = x.untyped_data(), product.weight = weight.untyped_data(), product.scales = nullptr;
    product.out = static_cast<float*>(out.untyped_data()), product.prepared = native::at_line(scratch.untyped_data());
    native::leave_padding(product, *used.typed_data());
  }
  if (products[0].rows == 0) return ffi::Error::Success();
  native::multiply_scaled(products.data(), all.data(), static_cast<int64_t>(count), pool.num_threads(),
                          [&](auto&& task) { pool.Schedule(std::move(task)); });
  return ffi::Error::Success();
}

}  // namespace

XLA_CUSTOM_CALL(scaled_product_of_rows, multiply_scaled, "group", "float4")
