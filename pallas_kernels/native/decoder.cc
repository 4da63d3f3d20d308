// Custom calls of XLA: all that most models call on a CPU, whose matrices and pages are of bfloat16.

#include "argmax.h"
#include "attention_call.h"
#include "coded_call.h"
#include "product_call.h"
#include "threshold.h"
#include "zeros.h"

namespace ffi = native::ffi;

namespace {

// (values, weights, floors, targets) -> out; no weights: each value weighs 1
ffi::Error find_thresholds(ffi::ThreadPool pool, ffi::BufferR2<ffi::F32> values, ffi::BufferR2<ffi::S32> weights,
                           ffi::BufferR1<ffi::F32> floors, ffi::BufferR1<ffi::S32> targets, ffi::ResultBufferR1<ffi::F32> out) {
  native::Threshold of;
  of.rows = values.dimensions()[0], of.size = values.dimensions()[1];
  const auto rows = static_cast<size_t>(of.rows);
  const bool weighed = weights.element_count() != 0;
  if ((weighed && (weights.dimensions()[0] != of.rows || weights.dimensions()[1] != of.size)) || floors.element_count() != rows ||
      targets.element_count() != rows || out->element_count() != rows) {
    return ffi::Error::InvalidArgument("extents of values, weights, floors, targets or out do not fit");
  }
  of.values = values.typed_data(), of.weights = weighed ? weights.typed_data() : nullptr;
  of.floors = floors.typed_data(), of.targets = targets.typed_data(), of.out = out->typed_data();
  native::find_thresholds(of, pool.num_threads(), [&](auto&& task) { pool.Schedule(std::move(task)); });
  return ffi::Error::Success();
}

// (values, used) -> out: the number of each row's largest value; rows from `used` on get 0
ffi::Error find_largest(ffi::ThreadPool pool, ffi::BufferR2<ffi::F32> values, ffi::BufferR0<ffi::S32> used,
                        ffi::ResultBufferR1<ffi::S32> out, float at_most) {
  const int64_t rows = values.dimensions()[0], kept = native::smaller(native::larger(*used.typed_data(), 0), rows);
  const native::Argmax of{kept, values.dimensions()[1], values.typed_data(), at_most, out->typed_data()};
  if (of.size < 1 || of.size > INT32_MAX || out->dimensions()[0] != rows) {
    return ffi::Error::InvalidArgument("extents of values or out do not fit");
  }
  memset(of.out + kept, 0, (rows - kept) * sizeof(int32_t));
  native::argmax(of, pool.num_threads(), [&](auto&& task) { pool.Schedule(std::move(task)); });
  return ffi::Error::Success();
}

// (arrays...) -> (outs...): the arrays; within a loop over layers, where nothing else can take those of one.
ffi::Error copy(ffi::RemainingArgs arrays, ffi::RemainingRets outs) {
  if (arrays.size() != outs.size()) return ffi::Error::InvalidArgument("each array must have an out");
  for (size_t number = 0; number < arrays.size(); ++number) {
    const ffi::AnyBuffer array = arrays[number], out = outs[number];
    if (out.size_bytes() == 0 || array.size_bytes() != out.size_bytes() || array.element_type() != out.element_type()) {
      return ffi::Error::InvalidArgument("types or extents of an array and its out do not fit");
    }
    memcpy(out.untyped_data(), array.untyped_data(), out.size_bytes());
  }
  return ffi::Error::Success();
}

// () -> out: zeros.
ffi::Error zeros(ffi::Result<ffi::AnyBuffer> out) {
  if (out->size_bytes() == 0) return ffi::Error::InvalidArgument("out is of another type, or empty");
  native::make_zeros(out->untyped_data(), out->size_bytes());
  return ffi::Error::Success();
}

}  // namespace

XLA_CUSTOM_CALL(product_of_rows, native::multiply_call<native::Kind::bfloat16>)

XLA_CUSTOM_CALL(product_of_coded, native::multiply_coded_call)

XLA_CUSTOM_CALL(rows_of_coded, native::take_coded_call)

XLA_CUSTOM_CALL(attention_of_rows, native::attend_call<uint16_t>, "scale", "soft_cap", "window")

XLA_CUSTOM_CALL(write_of_tokens, native::write_call<uint16_t>)

XLA_CUSTOM_CALL(threshold_of_rows, find_thresholds)

XLA_CUSTOM_CALL(argmax_of_rows, find_largest, "at_most")

XLA_CUSTOM_CALL(copies_of_arrays, copy)

XLA_CUSTOM_CALL(zeros_of_array, zeros)
