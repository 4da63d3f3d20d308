// The types of `factors.h` as XLA calls them.

#pragma once

#include "factors.h"

#include "xla/ffi/api/ffi.h"

namespace native {

// What scales are kept in, and zeros beside them; false: nothing that is read.
inline bool find_factor(xla::ffi::DataType type, Factor& factor) {
  switch (type) {
    case xla::ffi::DataType::F32: factor = Factor::float32; return true;
    case xla::ffi::DataType::BF16: factor = Factor::bfloat16; return true;
    case xla::ffi::DataType::U8: factor = Factor::bytes; return true;
    default: return false;
  }
}

inline xla::ffi::DataType type_of_zeros(xla::ffi::DataType scales) {
  return scales == xla::ffi::DataType::U8 ? xla::ffi::DataType::S8 : scales;
}

inline bool is_array(const xla::ffi::AnyBuffer& buffer, xla::ffi::DataType type, int64_t count) {
  return buffer.element_type() == type && buffer.element_count() == static_cast<size_t>(count);
}

}  // namespace native
