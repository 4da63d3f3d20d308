// What `grouped.h` does as a custom call of XLA.

#include "product.h"
#include "factor_types.h"
#include "grouped.h"

#include "custom_call.h"

namespace {

namespace ffi = native::ffi;

// What a matrix has; false: nothing that is multiplied.
bool find_element(ffi::DataType type, bool float4, native::Element& element) {
  switch (type) {
    case ffi::DataType::F32: element = native::Element::float32; return true;
    case ffi::DataType::BF16: element = native::Element::bfloat16; return true;
    case ffi::DataType::U8: element = float4 ? native::Element::float4 : native::Element::int4; return true;
    case ffi::DataType::S8: element = native::Element::int8; return true;
    case ffi::DataType::F8E4M3FN: element = native::Element::float8_e4m3; return true;
    case ffi::DataType::F8E5M2: element = native::Element::float8_e5m2; return true;
    default: return false;
  }
}

// (x, weights, sizes, scales, zeros, row_scales) -> (out, scratch); scales, zeros and row_scales may be empty. `float4` as above
ffi::Error multiply_grouped(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer weights, ffi::AnyBuffer sizes,
                            ffi::AnyBuffer scales, ffi::AnyBuffer zeros, ffi::AnyBuffer row_scales,
                            ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> scratch, int64_t group, bool float4) {
  if (x.dimensions().size() != 2 || weights.dimensions().size() != 3 || out->dimensions().size() != 2) {
    return ffi::Error::InvalidArgument("x and out must have two axes and weights three");
  }
  native::Grouped grouped;
  if (!find_element(weights.element_type(), float4, grouped.element)) {
    return ffi::Error::InvalidArgument("weights must be of float32, bfloat16, uint8, int8, float8_e4m3fn or float8_e5m2");
  }
  const bool integers = x.element_type() == ffi::DataType::S8, with_scales = scales.element_count() != 0;
  const bool with_zeros = zeros.element_count() != 0;
  grouped.rows = out->dimensions()[0], grouped.outputs = out->dimensions()[1], grouped.groups = weights.dimensions()[0];
  grouped.inputs = weights.dimensions()[1] * native::line_inputs(grouped.element);
  grouped.scale_inputs = integers || !with_scales ? native::larger(1, grouped.inputs) : group;
  if (grouped.scale_inputs < 1) return ffi::Error::InvalidArgument("group must be positive");
  grouped.scale_groups = (grouped.inputs + grouped.scale_inputs - 1) / grouped.scale_inputs;
  const ffi::DataType of_scales = scales.element_type(), of_zeros = native::type_of_zeros(of_scales);

  using native::Element;
  const Element element = grouped.element;
  const bool plain = element == Element::float32 || element == Element::bfloat16;
  const ffi::DataType of_floats = element == Element::float32 ? ffi::DataType::F32 : ffi::DataType::BF16;
  const ffi::DataType of_rows = integers ? ffi::DataType::S8 : of_floats;
  const int64_t of_groups = grouped.groups * grouped.scale_groups * grouped.outputs;
  const bool known = integers ? element == Element::int8 && with_scales && !with_zeros : with_scales != plain;
  const bool even = grouped.scale_groups <= 1 || grouped.scale_inputs % 2 == 0;
  const auto needed =
      static_cast<size_t>(native::grouped_scratch_bytes(grouped.rows, grouped.inputs, grouped.scale_groups));
  const bool fits =
      known && even && native::find_factor(of_scales, grouped.factor) && x.element_type() == of_rows &&
      x.dimensions()[0] == grouped.rows &&
      x.dimensions()[1] == native::row_inputs(grouped.inputs) && weights.dimensions()[2] == grouped.outputs &&
      is_array(sizes, ffi::DataType::S32, grouped.groups) &&
      (!with_scales || is_array(scales, of_scales, of_groups)) &&
      (!with_zeros || (with_scales && is_array(zeros, of_zeros, of_groups))) &&
      (!integers || (of_scales == ffi::DataType::F32 && is_array(row_scales, of_scales, grouped.rows))) &&
      out->element_type() == ffi::DataType::F32 && scratch->size_bytes() >= needed;
  if (!fits) {
    return ffi::Error::InvalidArgument(
        "types or extents of x, weights, sizes, scales, zeros, row_scales, out or scratch do not fit");
  }
  grouped.x = x.untyped_data(), grouped.weights = weights.untyped_data();
  grouped.sizes = static_cast<const int32_t*>(sizes.untyped_data());
  grouped.scales = with_scales ? scales.untyped_data() : nullptr, grouped.zeros = with_zeros ? zeros.untyped_data() : nullptr;
  grouped.row_scales = integers ? static_cast<const float*>(row_scales.untyped_data()) : nullptr;
  grouped.out = static_cast<float*>(out->untyped_data()), grouped.scratch = scratch->untyped_data();
  native::multiply_grouped(grouped, pool.num_threads(), [&](auto&& task) { pool.Schedule(std::move(task)); });
  return ffi::Error::Success();
}

}  // namespace

XLA_CUSTOM_CALL(products_of_groups, multiply_grouped, "group", "float4")
