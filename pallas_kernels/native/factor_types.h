// The types of `factors.h` as XLA calls them.

#pragma once

#include "factors.h"

#include "custom_call.h"

namespace native {

// What scales are kept in, and zeros beside them; false: nothing that is read.
inline bool find_factor(ffi::DataType type, Factor& factor) {
  switch (type) {
    case ffi::DataType::F32: factor = Factor::float32; return true;
    case ffi::DataType::BF16: factor = Factor::bfloat16; return true;
    case ffi::DataType::U8: factor = Factor::bytes; return true;
    default: return false;
  }
}

inline ffi::DataType type_of_zeros(ffi::DataType scales) {
  return scales == ffi::DataType::U8 ? ffi::DataType::S8 : scales;
}

}  // namespace native
