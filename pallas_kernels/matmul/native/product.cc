// The products of `product.h` as custom calls of XLA: (x, weight, scales) -> (out, scratch).

#include "product.h"

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

ffi::Error multiply(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer weight, ffi::AnyBuffer scales,
                    ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> scratch) {
  if (x.dimensions().size() != 2 || weight.dimensions().size() != 2 || out->dimensions().size() != 2) {
    return ffi::Error::InvalidArgument("x, weight and out must have two axes");
  }
  product::Product product;
  product.rows = x.dimensions()[0], product.inputs = x.dimensions()[1], product.outputs = weight.dimensions()[0];
  ffi::DataType of_x = ffi::DataType::F32;
  switch (weight.element_type()) {
    case ffi::DataType::BF16:
      product.kind = product::Kind::bfloat16;
      of_x = ffi::DataType::BF16;
      break;
    case ffi::DataType::F32:
      product.kind = product::Kind::float32;
      break;
    case ffi::DataType::S8:
      product.kind = product::Kind::int8;
      break;
    default:
      return ffi::Error::InvalidArgument("weight must be of bfloat16, float32 or int8");
  }
  const bool integers = product.kind == product::Kind::int8;
  const auto needed = static_cast<size_t>(product::prepared_bytes(product.kind, product.rows, product.inputs));
  const bool fits = weight.dimensions()[1] == product.inputs && out->dimensions()[0] == product.rows &&
                    out->dimensions()[1] == product.outputs && x.element_type() == of_x &&
                    out->element_type() == ffi::DataType::F32 && scales.element_type() == ffi::DataType::F32 &&
                    scales.element_count() == static_cast<size_t>(integers ? product.outputs : 0) &&
                    scratch->size_bytes() >= needed;
  if (!fits) return ffi::Error::InvalidArgument("types or extents of x, weight, scales, out or scratch do not fit");
  product.x = x.untyped_data(), product.weight = weight.untyped_data();
  product.scales = static_cast<const float*>(scales.untyped_data());
  product.out = static_cast<float*>(out->untyped_data()), product.prepared = scratch->untyped_data();
  product::multiply(product, pool.num_threads(), [&](auto&& task) { pool.Schedule(std::move(task)); });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(product_of_rows, multiply,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>());
