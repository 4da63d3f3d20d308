// What `product.h`, `attention.h` and `threshold.h` do as custom calls of XLA: all that most models call on a CPU.

#include "attention.h"
#include "product.h"
#include "threshold.h"

#include "custom_call.h"

namespace ffi = native::ffi;

namespace {

// (x, used, weights..., scales...) -> (outs..., scratch): the products of x with each weight, which are of one type. Rows from `used`
// on get zeros.
ffi::Error multiply(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::BufferR0<ffi::S32> used, ffi::RemainingArgs weights,
                    ffi::RemainingRets outs) {
  const size_t count = weights.size() / 2;
  if (count == 0 || weights.size() != 2 * count || outs.size() != count + 1) {
    return ffi::Error::InvalidArgument("each weight must have scales, perhaps none, and an out; scratch comes last");
  }
  const ffi::AnyBuffer scratch = outs[count];
  std::vector<native::Product> products(count);
  for (size_t number = 0; number < count; ++number) {
    const ffi::AnyBuffer weight = weights[number], scales = weights[count + number];
    const ffi::AnyBuffer out = outs[number];
    if (x.dimensions().size() != 2 || weight.dimensions().size() != 2 || out.dimensions().size() != 2) {
      return ffi::Error::InvalidArgument("x, weight and out must have two axes");
    }
    native::Product& product = products[number];
    product.rows = x.dimensions()[0], product.inputs = x.dimensions()[1], product.outputs = weight.dimensions()[0];
    ffi::DataType of_x = ffi::DataType::F32;
    switch (weight.element_type()) {
      case ffi::DataType::BF16:
        product.kind = native::Kind::bfloat16;
        of_x = ffi::DataType::BF16;
        break;
      case ffi::DataType::F32:
        product.kind = native::Kind::float32;
        break;
      case ffi::DataType::S8:
        product.kind = native::Kind::int8;
        break;
      default:
        return ffi::Error::InvalidArgument("weight must be of bfloat16, float32 or int8");
    }
    const bool integers = product.kind == native::Kind::int8;
    const auto needed = static_cast<size_t>(native::prepared_bytes(product.kind, product.rows, product.inputs) + native::LINE);
    const bool fits = product.kind == products[0].kind && weight.dimensions()[1] == product.inputs &&
                      out.dimensions()[0] == product.rows && out.dimensions()[1] == product.outputs &&
                      x.element_type() == of_x && out.element_type() == ffi::DataType::F32 &&
                      scales.element_type() == ffi::DataType::F32 &&
                      scales.element_count() == static_cast<size_t>(integers ? product.outputs : 0) &&
                      scratch.size_bytes() >= needed;
    if (!fits) return ffi::Error::InvalidArgument("types or extents of x, weight, scales, out or scratch do not fit");
    product.x = x.untyped_data(), product.weight = weight.untyped_data();
    product.scales = static_cast<const float*>(scales.untyped_data());
    product.out = static_cast<float*>(out.untyped_data()), product.prepared = native::at_line(scratch.untyped_data());
    const int64_t rows = native::smaller(native::larger(*used.typed_data(), 0), product.rows);
    memset(product.out + rows * product.outputs, 0, (product.rows - rows) * product.outputs * sizeof(float));
    product.rows = rows;
  }
  if (products[0].rows == 0) return ffi::Error::Success();
  native::multiply(products.data(), count, pool.num_threads(), [&](auto&& task) { pool.Schedule(std::move(task)); });
  return ffi::Error::Success();
}

bool is_int32(const ffi::AnyBuffer& buffer, size_t axes) {
  return buffer.element_type() == ffi::DataType::S32 && buffer.dimensions().size() == axes;
}

// (q, pages, table, offsets, starts, sinks, slopes, until) -> out
ffi::Error attend(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer pages, ffi::AnyBuffer table, ffi::AnyBuffer offsets,
                  ffi::AnyBuffer starts, ffi::AnyBuffer sinks, ffi::AnyBuffer slopes, ffi::AnyBuffer until,
                  ffi::Result<ffi::AnyBuffer> out, float scale, float soft_cap, int64_t window) {
  const auto shape = q.dimensions(), held = pages.dimensions();
  if (shape.size() != 3 || held.size() != 4) return ffi::Error::InvalidArgument("q must have three axes and pages four");
  native::Attention a;
  a.places = shape[0], a.heads = shape[1], a.head_size = shape[2];
  a.num_pages = held[0], a.page_tokens = held[1], a.kv_heads = held[2] / 2;
  a.wide = pages.element_type() == ffi::DataType::F32;
  const ffi::DataType narrow = pages.element_type();
  const bool known = a.wide ? q.element_type() == ffi::DataType::F32
                            : (narrow == ffi::DataType::U16 || narrow == ffi::DataType::BF16) &&
                                  q.element_type() == ffi::DataType::BF16;
  const auto by_head = [&](const ffi::AnyBuffer& buffer) {
    return buffer.element_type() == ffi::DataType::F32 &&
           (buffer.element_count() == 0 || buffer.element_count() == static_cast<size_t>(a.heads));
  };
  const bool fits = known && is_int32(table, 2) && is_int32(offsets, 1) && is_int32(starts, 1) && by_head(sinks) &&
                    by_head(slopes) && is_int32(until, 1) &&
                    (until.element_count() == 0 || until.element_count() == static_cast<size_t>(a.places)) && table.dimensions()[0] == starts.dimensions()[0] &&
                    offsets.dimensions()[0] == starts.dimensions()[0] + 1 && held[2] == 2 * a.kv_heads &&
                    held[3] == a.head_size && a.kv_heads > 0 && a.heads % a.kv_heads == 0 && a.num_pages > 0 && table.dimensions()[1] > 0 &&
                    out->element_type() == ffi::DataType::F32 && out->element_count() == q.element_count();
  if (!fits) return ffi::Error::InvalidArgument("types or extents of q, pages, table, offsets, starts, sinks, slopes, until or out");
  a.rows = table.dimensions()[0], a.table_pages = table.dimensions()[1];
  a.q = q.untyped_data(), a.pages = pages.untyped_data();
  a.table = static_cast<const int32_t*>(table.untyped_data());
  a.offsets = static_cast<const int32_t*>(offsets.untyped_data());
  a.starts = static_cast<const int32_t*>(starts.untyped_data());
  a.sinks = sinks.element_count() == 0 ? nullptr : static_cast<const float*>(sinks.untyped_data());
  a.slopes = slopes.element_count() == 0 ? nullptr : static_cast<const float*>(slopes.untyped_data());
  a.until = until.element_count() == 0 ? nullptr : static_cast<const int32_t*>(until.untyped_data());
  a.scale = scale, a.soft_cap = soft_cap, a.window = window;
  a.out = static_cast<float*>(out->untyped_data());
  native::attend(a, pool.num_threads(), [&](auto&& task) { pool.Schedule(std::move(task)); });
  return ffi::Error::Success();
}

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

// (arrays...) -> out: where they lie, 8 bytes each. XLA leaves what a program is given where it is until the program ends, so that a
// loop within it may read what lies there.
ffi::Error find_addresses(ffi::RemainingArgs arrays, ffi::Result<ffi::AnyBuffer> out) {
  if (out->size_bytes() != arrays.size() * sizeof(void*)) return ffi::Error::InvalidArgument("out must have 8 bytes for each array");
  for (size_t number = 0; number < arrays.size(); ++number) {
    const void* const address = arrays[number].untyped_data();
    memcpy(static_cast<char*>(out->untyped_data()) + number * sizeof(void*), &address, sizeof(void*));
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_CUSTOM_CALL(product_of_rows, multiply)

XLA_CUSTOM_CALL(attention_of_rows, attend, "scale", "soft_cap", "window")

XLA_CUSTOM_CALL(threshold_of_rows, find_thresholds)

XLA_CUSTOM_CALL(copies_of_arrays, copy)

XLA_CUSTOM_CALL(addresses_of_arrays, find_addresses)
