// Attention over pages, and what is written there, as a custom call of XLA, by what these hold.

#pragma once

#include "attention.h"
#include "custom_call.h"
#include "write_kv.h"

namespace native {

inline bool is_int32(const ffi::AnyBuffer& buffer, size_t axes) {
  return buffer.element_type() == ffi::DataType::S32 && buffer.dimensions().size() == axes;
}

// (q, pages, table, offsets, starts, sinks, slopes, until) -> out
template <typename Value>
ffi::Error attend_call(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer pages, ffi::AnyBuffer table, ffi::AnyBuffer offsets,
                  ffi::AnyBuffer starts, ffi::AnyBuffer sinks, ffi::AnyBuffer slopes, ffi::AnyBuffer until,
                  ffi::Result<ffi::AnyBuffer> out, float scale, float soft_cap, int64_t window) {
  const auto shape = q.dimensions(), held = pages.dimensions();
  if (shape.size() != 3 || held.size() != 4) return ffi::Error::InvalidArgument("q must have three axes and pages four");
  Attention a;
  a.places = shape[0], a.heads = shape[1], a.head_size = shape[2];
  a.num_pages = held[0], a.page_tokens = held[1], a.kv_heads = held[2] / 2;
  const ffi::DataType of_q = q.element_type(), of_pages = pages.element_type();
  const bool known = sizeof(Value) == 4 ? of_q == ffi::DataType::F32 && of_pages == ffi::DataType::F32
                                        : of_q == ffi::DataType::BF16 && (of_pages == ffi::DataType::U16 || of_pages == ffi::DataType::BF16);
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
  attend<Value>(a, pool.num_threads(), [&](auto&& task) { pool.Schedule(std::move(task)); });
  return ffi::Error::Success();
}

// (pages, keys, values, slots) -> the same pages
template <typename Value>
ffi::Error write_call(ffi::ThreadPool pool, ffi::AnyBuffer pages, ffi::AnyBuffer keys, ffi::AnyBuffer values, ffi::AnyBuffer slots,
                      ffi::Result<ffi::AnyBuffer> out) {
  const auto held = pages.dimensions(), shape = keys.dimensions();
  if (held.size() != 4 || shape.size() != 3) return ffi::Error::InvalidArgument("pages must have four axes and keys three");
  WriteKv<Value> of;
  of.tokens = shape[0], of.kv_heads = shape[1], of.head_size = shape[2], of.places = held[0] * held[1];
  const ffi::DataType type = pages.element_type();
  const auto is_floats = [&](const ffi::AnyBuffer& buffer) {
    return buffer.element_type() == ffi::DataType::F32 && buffer.element_count() == keys.element_count();
  };
  const bool known = sizeof(Value) == 4 ? type == ffi::DataType::F32 : type == ffi::DataType::U16 || type == ffi::DataType::BF16;
  const bool fits = known && is_floats(keys) && is_floats(values) && is_int32(slots, 1) && slots.dimensions()[0] == of.tokens &&
                    held[2] == 2 * of.kv_heads && held[3] == of.head_size && out->untyped_data() == pages.untyped_data();
  if (!fits) return ffi::Error::InvalidArgument("types or extents of pages, keys, values or slots, or out lies elsewhere");
  of.keys = static_cast<const float*>(keys.untyped_data()), of.values = static_cast<const float*>(values.untyped_data());
  of.slots = static_cast<const int32_t*>(slots.untyped_data()), of.pages = static_cast<Value*>(out->untyped_data());
  write_kv(of, pool.num_threads(), [&](auto&& task) { pool.Schedule(std::move(task)); });
  return ffi::Error::Success();
}

}  // namespace native
