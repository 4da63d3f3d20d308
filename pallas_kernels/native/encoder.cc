// What `packed.h` and `row_attention.h` do as custom calls of XLA.

#include "product.h"
#include "packed.h"
#include "row_attention.h"

#include "custom_call.h"

namespace {

namespace ffi = native::ffi;

const float* floats_or_null(const ffi::AnyBuffer& buffer) {
  return buffer.element_count() == 0 ? nullptr : static_cast<const float*>(buffer.untyped_data());
}

// How many rows are to be made; the others of `out` get zeros.
int64_t used_rows(ffi::BufferR0<ffi::S32> used, int64_t rows, int64_t size, float* out) {
  const int64_t count = native::smaller(native::larger(*used.typed_data(), 0), rows);
  memset(out + count * size, 0, (rows - count) * size * sizeof(float));
  return count;
}

// (x, used, matrices..., biases...) -> (outs..., scratch): the products of x with each matrix, a bias added where there is one.
ffi::Error multiply_packed(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::BufferR0<ffi::S32> used, ffi::RemainingArgs matrices,
                           ffi::RemainingRets outs, bool gelu) {
  const size_t count = matrices.size() / 2;
  if (count == 0 || matrices.size() != 2 * count || outs.size() != count + 1 || x.dimensions().size() != 2) {
    return ffi::Error::InvalidArgument("each matrix must have a bias, perhaps none, and an out; scratch comes last");
  }
  const ffi::AnyBuffer scratch = outs[count];
  native::PackedProduct product;
  product.rows = x.dimensions()[0], product.inputs = x.dimensions()[1];
  product.x = static_cast<const float*>(x.untyped_data()), product.rounded = static_cast<native::PairValue*>(scratch.untyped_data());
  product.activation = gelu ? native::Activation::gelu : native::Activation::none;
  const ffi::DataType type = matrices[0].element_type();
  product.pairs = type == ffi::DataType::BF16;
  const int64_t rows = product.rows, needed = product.pairs ? rows * product.inputs * sizeof(native::PairValue) : 0;
  bool fit = (product.pairs ? product.inputs % 2 == 0 : type == ffi::F32) && is_array(x, ffi::F32, rows * product.inputs) &&
             scratch.size_bytes() >= static_cast<size_t>(needed);
  std::vector<native::PackedMatrix> all(count);
  for (size_t number = 0; number < count && fit; ++number) {
    const ffi::AnyBuffer panels = matrices[number], bias = matrices[count + number];
    const ffi::AnyBuffer out = outs[number];
    native::PackedMatrix& one = all[number];
    one.outputs = panels.dimensions().size() < 3 ? 0 : panels.dimensions()[0] * native::PANEL;
    one.panels = static_cast<const float*>(panels.untyped_data()), one.bias = floats_or_null(bias);
    one.out = static_cast<float*>(out.untyped_data());
    fit = panels.element_type() == type && panels.element_count() == static_cast<size_t>(one.outputs * product.inputs) &&
          (one.bias == nullptr || is_array(bias, ffi::F32, one.outputs)) && is_array(out, ffi::F32, rows * one.outputs) &&
          one.outputs % native::COLUMNS_AT_ONCE == 0;
    if (fit) product.rows = used_rows(used, rows, one.outputs, one.out);
  }
  if (!fit) return ffi::Error::InvalidArgument("types or extents of x, matrices, biases, outs or scratch do not fit");
  if (product.rows == 0) return ffi::Error::Success();
  native::multiply_packed(product, all, pool.num_threads(), [&](auto&& task) { pool.Schedule(std::move(task)); });
  return ffi::Error::Success();
}

// (q, keys, values, offsets) -> out
ffi::Error attend_rows(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer keys, ffi::AnyBuffer values, ffi::AnyBuffer offsets,
                       ffi::Result<ffi::AnyBuffer> out, float scale, int64_t window) {
  const auto shape = q.dimensions(), held = keys.dimensions();
  if (shape.size() != 3 || held.size() != 3) return ffi::Error::InvalidArgument("q and keys must have three axes");
  native::RowAttention a;
  a.places = shape[0], a.heads = shape[1], a.head_size = shape[2], a.kv_heads = held[1];
  a.scale = scale, a.window = window;
  const bool fit = a.kv_heads > 0 && a.heads % a.kv_heads == 0 && is_array(q, ffi::F32, a.places * a.heads * a.head_size) &&
                   is_array(keys, ffi::F32, a.places * a.kv_heads * a.head_size) && is_array(values, ffi::F32, keys.element_count()) &&
                   offsets.element_type() == ffi::DataType::S32 && offsets.dimensions().size() == 1 &&
                   offsets.element_count() > 0 && is_array(*out, ffi::F32, q.element_count());
  if (!fit) return ffi::Error::InvalidArgument("types or extents of q, keys, values, offsets or out do not fit");
  a.rows = offsets.element_count() - 1, a.offsets = static_cast<const int32_t*>(offsets.untyped_data());
  a.q = static_cast<const float*>(q.untyped_data()), a.keys = static_cast<const float*>(keys.untyped_data());
  a.values = static_cast<const float*>(values.untyped_data()), a.out = static_cast<float*>(out->untyped_data());
  native::attend_rows(a, pool.num_threads(), [&](auto&& task) { pool.Schedule(std::move(task)); });
  return ffi::Error::Success();
}

}  // namespace

XLA_CUSTOM_CALL(products_of_packed, multiply_packed, "gelu")

XLA_CUSTOM_CALL(attention_within_rows, attend_rows, "scale", "window")
