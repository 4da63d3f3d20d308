// What `norms.h` and `rotate.h` do as custom calls of XLA: what nearly all models call between products.

#include <type_traits>

#include "product.h"
#include "norms.h"
#include "rotate.h"

#include "custom_call.h"

namespace ffi = native::ffi;

namespace {

bool is_empty(const ffi::AnyBuffer& buffer) { return buffer.element_count() == 0; }

// Null if it is empty.
template <typename Value>
Value* data_of(const ffi::AnyBuffer& buffer) { return is_empty(buffer) ? nullptr : static_cast<Value*>(buffer.untyped_data()); }

// Of each of `size` channels, in float32 or bfloat16; or empty.
bool is_of_channels(const ffi::AnyBuffer& buffer, int64_t size) {
  return is_empty(buffer) || is_array(buffer, ffi::F32, size) || is_array(buffer, ffi::DataType::BF16, size);
}

// (x, scale) -> out; scale may be empty
ffi::Error norm_rows(ffi::ThreadPool pool, ffi::BufferR2<ffi::F32> x, ffi::AnyBuffer scale, ffi::Result<ffi::AnyBuffer> out,
                     float epsilon, float offset) {
  const int64_t rows = x.dimensions()[0], size = x.dimensions()[1];
  if (!is_array(*out, ffi::F32, rows * size) || !is_of_channels(scale, size)) {
    return ffi::Error::InvalidArgument("types or extents of x, scale or out do not fit");
  }
  const auto norm = [&](auto of) {
    of.rows = rows, of.size = size, of.epsilon = epsilon, of.offset = offset;
    of.x = x.typed_data(), of.scale = data_of<std::remove_pointer_t<decltype(of.scale)>>(scale), of.out = data_of<float>(*out);
    native::rms_norm(of, pool.num_threads(), [&](auto&& task) { pool.Schedule(std::move(task)); });
  };
  if (scale.element_type() == ffi::DataType::BF16) norm(native::RmsNorm<uint16_t>());
  else norm(native::RmsNorm<float>());
  return ffi::Error::Success();
}

// (x, added, scale, bias, used) -> out; added, scale and bias may be empty. Rows from `used` on get zeros.
ffi::Error layer_norm_rows(ffi::ThreadPool pool, ffi::BufferR2<ffi::F32> x, ffi::AnyBuffer added, ffi::AnyBuffer scale,
                           ffi::AnyBuffer bias, ffi::BufferR0<ffi::S32> used, ffi::Result<ffi::AnyBuffer> out, float epsilon) {
  const int64_t rows = x.dimensions()[0], size = x.dimensions()[1];
  const bool alike = is_empty(scale) || is_empty(bias) || scale.element_type() == bias.element_type();
  const bool fits = alike && is_of_channels(scale, size) && is_of_channels(bias, size) && is_array(*out, ffi::F32, rows * size) &&
                    (is_empty(added) || is_array(added, ffi::F32, rows * size));
  if (!fits) return ffi::Error::InvalidArgument("types or extents of x, added, scale, bias or out do not fit");
  const int64_t count = native::smaller(native::larger(*used.typed_data(), 0), rows);
  memset(data_of<float>(*out) + count * size, 0, (rows - count) * size * sizeof(float));
  const auto norm = [&](auto of) {
    using Scale = std::remove_pointer_t<decltype(of.scale)>;
    of.rows = count, of.size = size, of.epsilon = epsilon;
    of.x = x.typed_data(), of.added = data_of<float>(added), of.out = data_of<float>(*out);
    of.scale = data_of<Scale>(scale), of.bias = data_of<Scale>(bias);
    native::layer_norm(of, pool.num_threads(), [&](auto&& task) { pool.Schedule(std::move(task)); });
  };
  if ((is_empty(scale) ? bias : scale).element_type() == ffi::DataType::BF16) norm(native::LayerNorm<uint16_t>());
  else norm(native::LayerNorm<float>());
  return ffi::Error::Success();
}

// (x, cosines, sines) -> out
ffi::Error rotate_heads(ffi::ThreadPool pool, ffi::Buffer<ffi::F32, 3> x, ffi::AnyBuffer cosines, ffi::AnyBuffer sines,
                        ffi::Result<ffi::AnyBuffer> out) {
  native::Rotate of;
  of.tokens = x.dimensions()[0], of.heads = x.dimensions()[1], of.size = x.dimensions()[2];
  const int64_t angles = of.tokens * (of.size / 2);
  const bool fits = of.size % 2 == 0 && is_array(cosines, ffi::F32, angles) && is_array(sines, ffi::F32, angles) &&
                    is_array(*out, ffi::F32, x.element_count());
  if (!fits) return ffi::Error::InvalidArgument("types or extents of x, cosines, sines or out do not fit");
  of.x = x.typed_data(), of.cosines = data_of<float>(cosines), of.sines = data_of<float>(sines), of.out = data_of<float>(*out);
  native::rotate(of, pool.num_threads(), [&](auto&& task) { pool.Schedule(std::move(task)); });
  return ffi::Error::Success();
}

}  // namespace

XLA_CUSTOM_CALL(norm_of_rows, norm_rows, "epsilon", "offset")

XLA_CUSTOM_CALL(layer_norm_of_rows, layer_norm_rows, "epsilon")

XLA_CUSTOM_CALL(rotation_of_heads, rotate_heads)
