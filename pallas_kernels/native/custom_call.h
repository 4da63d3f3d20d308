// Custom calls of XLA by its C interface: what is used here of `xla/ffi/api/ffi.h`, by the same names. That header takes a quarter
// of the time in which a library is built. What a call is given follows from the function's parameters; attributes, which come
// last, are named where the call is defined.

#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <initializer_list>
#include <tuple>
#include <utility>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace native::ffi {

enum class DataType {
  U8 = XLA_FFI_DataType_U8,
  U16 = XLA_FFI_DataType_U16,
  S8 = XLA_FFI_DataType_S8,
  S32 = XLA_FFI_DataType_S32,
  F32 = XLA_FFI_DataType_F32,
  BF16 = XLA_FFI_DataType_BF16,
  F8E4M3FN = XLA_FFI_DataType_F8E4M3FN,
  F8E5M2 = XLA_FFI_DataType_F8E5M2,
};
constexpr DataType S32 = DataType::S32, F32 = DataType::F32;

// Of those above; 0 of others.
inline size_t byte_width(DataType type) {
  switch (type) {
    case DataType::U8: case DataType::S8: case DataType::F8E4M3FN: case DataType::F8E5M2: return 1;
    case DataType::U16: case DataType::BF16: return 2;
    case DataType::S32: case DataType::F32: return 4;
  }
  return 0;
}

template <DataType type> struct Native;
template <> struct Native<S32> { using Type = int32_t; };
template <> struct Native<F32> { using Type = float; };

// What a function returns. The message must stay where it is.
class Error {
 public:
  static Error Success() { return Error(nullptr); }
  static Error InvalidArgument(const char* message) { return Error(message); }
  const char* message() const { return message_; }

 private:
  explicit Error(const char* message) : message_(message) {}
  const char* message_;
};

inline XLA_FFI_Error* given(const XLA_FFI_Api* api, const char* message, XLA_FFI_Error_Code code) {
  XLA_FFI_Error_Create_Args args{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message, code};
  return api->XLA_FFI_Error_Create(&args);
}

inline void destroy(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
  XLA_FFI_Error_Destroy_Args args{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
  api->XLA_FFI_Error_Destroy(&args);
}

class Dimensions {
 public:
  Dimensions(const int64_t* first, int64_t count) : first_(first), count_(count) {}
  size_t size() const { return count_; }
  int64_t operator[](size_t axis) const { return first_[axis]; }

 private:
  const int64_t* first_;
  int64_t count_;
};

class AnyBuffer {
 public:
  explicit AnyBuffer(const XLA_FFI_Buffer* buffer) : buffer_(buffer) {}
  DataType element_type() const { return static_cast<DataType>(buffer_->dtype); }
  Dimensions dimensions() const { return {buffer_->dims, buffer_->rank}; }
  void* untyped_data() const { return buffer_->data; }
  size_t size_bytes() const { return byte_width(element_type()) * element_count(); }
  size_t element_count() const {
    int64_t count = 1;
    for (int64_t axis = 0; axis < buffer_->rank; ++axis) count *= buffer_->dims[axis];
    return count;
  }

 private:
  const XLA_FFI_Buffer* buffer_;
};

inline bool is_array(const AnyBuffer& buffer, DataType type, int64_t count) {
  return buffer.element_type() == type && buffer.element_count() == static_cast<size_t>(count);
}

template <DataType type, size_t axes>
class Buffer : public AnyBuffer {
 public:
  using AnyBuffer::AnyBuffer;
  typename Native<type>::Type* typed_data() const { return static_cast<typename Native<type>::Type*>(untyped_data()); }
};
template <DataType type> using BufferR0 = Buffer<type, 0>;
template <DataType type> using BufferR1 = Buffer<type, 1>;
template <DataType type> using BufferR2 = Buffer<type, 2>;

template <typename B>
class Result {
 public:
  explicit Result(B buffer) : buffer_(buffer) {}
  B operator*() const { return buffer_; }
  const B* operator->() const { return &buffer_; }

 private:
  B buffer_;
};
template <DataType type> using ResultBufferR1 = Result<BufferR1<type>>;

// All arguments or results behind those that the function names.
class Remaining {
 public:
  Remaining(void** first, int64_t count) : first_(first), count_(count) {}
  size_t size() const { return count_; }
  AnyBuffer operator[](size_t number) const { return AnyBuffer(static_cast<const XLA_FFI_Buffer*>(first_[number])); }

 private:
  void** first_;
  int64_t count_;
};
class RemainingArgs : public Remaining { using Remaining::Remaining; };
class RemainingRets : public Remaining { using Remaining::Remaining; };

using Context = decltype(XLA_FFI_CallFrame::ctx);  // whose name differs between versions

// The threads of XLA.
class ThreadPool {
 public:
  ThreadPool(const XLA_FFI_Api* api, Context context) : api_(api), context_(context) {}

  // Have a thread call `task` at some time; this one does where none can.
  template <typename Task>
  void Schedule(Task task) {
    auto* kept = new Task(std::move(task));
    XLA_FFI_Task* const run = [](void* data) {
      auto* task = static_cast<Task*>(data);
      (*task)();
      delete task;
    };
    XLA_FFI_ThreadPool_Schedule_Args args{XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE, nullptr, context_, run, kept};
    if (XLA_FFI_Error* error = api_->XLA_FFI_ThreadPool_Schedule(&args)) {
      destroy(api_, error);
      run(kept);
    }
  }

  int64_t num_threads() const {
    int64_t count = 0;
    XLA_FFI_ThreadPool_NumThreads_Args args{XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE, nullptr, context_, &count};
    if (XLA_FFI_Error* error = api_->XLA_FFI_ThreadPool_NumThreads(&args)) destroy(api_, error);
    return count;
  }

 private:
  const XLA_FFI_Api* api_;
  Context context_;
};

// What is taken of a call, one parameter after the other. `wrong` says what did not fit; from then on nothing is meant.
struct Frame {
  const XLA_FFI_CallFrame& call;
  const char* const* names;
  int64_t num_names;
  int64_t args = 0, rets = 0, attrs = 0;
  const char* wrong = nullptr;

  const XLA_FFI_Buffer* next(void* const* buffers, int64_t count, int64_t& number) {
    static const XLA_FFI_Buffer none{};
    if (number >= count) wrong = "fewer arguments or results than the function has";
    return wrong ? &none : static_cast<const XLA_FFI_Buffer*>(buffers[number++]);
  }
  const XLA_FFI_Buffer* next_argument() { return next(call.args.args, call.args.size, args); }
  const XLA_FFI_Buffer* next_result() { return next(call.rets.rets, call.rets.size, rets); }

  template <typename T>
  T next_attribute(XLA_FFI_DataType type) {
    const char* const name = attrs < num_names ? names[attrs++] : "";
    for (int64_t number = 0; number < call.attrs.size; ++number) {
      const XLA_FFI_ByteSpan& span = *call.attrs.names[number];
      if (span.len != strlen(name) || memcmp(span.ptr, name, span.len) != 0) continue;
      if (call.attrs.types[number] != XLA_FFI_AttrType_SCALAR) break;
      const auto& scalar = *static_cast<const XLA_FFI_Scalar*>(call.attrs.attrs[number]);
      if (scalar.dtype == type) return *static_cast<const T*>(scalar.value);
    }
    wrong = "an attribute is missing or of another type";
    return T();
  }

  template <DataType type, size_t axes>
  const XLA_FFI_Buffer* fitting(const XLA_FFI_Buffer* buffer) {
    if (!wrong && (static_cast<DataType>(buffer->dtype) != type || buffer->rank != static_cast<int64_t>(axes))) {
      wrong = "an argument or result is of another type or has other axes";
    }
    return buffer;
  }
};

template <typename T> struct Take;
template <> struct Take<ThreadPool> {
  static ThreadPool from(Frame& frame) { return {frame.call.api, frame.call.ctx}; }
};
template <> struct Take<AnyBuffer> {
  static AnyBuffer from(Frame& frame) { return AnyBuffer(frame.next_argument()); }
};
template <DataType type, size_t axes> struct Take<Buffer<type, axes>> {
  static Buffer<type, axes> from(Frame& frame) { return Buffer<type, axes>(frame.fitting<type, axes>(frame.next_argument())); }
};
template <> struct Take<Result<AnyBuffer>> {
  static Result<AnyBuffer> from(Frame& frame) { return Result<AnyBuffer>(AnyBuffer(frame.next_result())); }
};
template <DataType type, size_t axes> struct Take<Result<Buffer<type, axes>>> {
  using B = Buffer<type, axes>;
  static Result<B> from(Frame& frame) { return Result<B>(B(frame.fitting<type, axes>(frame.next_result()))); }
};
template <> struct Take<RemainingArgs> {
  static RemainingArgs from(Frame& frame) {
    const int64_t first = std::exchange(frame.args, frame.call.args.size);
    return {frame.call.args.args + first, frame.call.args.size - first};
  }
};
template <> struct Take<RemainingRets> {
  static RemainingRets from(Frame& frame) {
    const int64_t first = std::exchange(frame.rets, frame.call.rets.size);
    return {frame.call.rets.rets + first, frame.call.rets.size - first};
  }
};
template <> struct Take<float> {
  static float from(Frame& frame) { return frame.next_attribute<float>(XLA_FFI_DataType_F32); }
};
template <> struct Take<int64_t> {
  static int64_t from(Frame& frame) { return frame.next_attribute<int64_t>(XLA_FFI_DataType_S64); }
};
template <> struct Take<bool> {
  static bool from(Frame& frame) { return frame.next_attribute<bool>(XLA_FFI_DataType_PRED); }
};

// XLA asks a function once, when it is registered, for which version of the interface it was built.
inline XLA_FFI_Error* tell_version(XLA_FFI_Metadata& metadata) {
  metadata.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
  metadata.traits = 0;
  metadata.state_type_id = XLA_FFI_UNKNOWN_TYPE_ID;
  return nullptr;
}

// The arguments of a call, of which some lie elsewhere within a loop over layers (`OF_LAYER` in `__init__.py`).
struct Arguments {
  explicit Arguments(const XLA_FFI_CallFrame& frame) : call(frame) {
    static const char name[] = "of_layer";
    const XLA_FFI_Array* numbers = nullptr;
    for (int64_t number = 0; number < frame.attrs.size; ++number) {
      const XLA_FFI_ByteSpan& span = *frame.attrs.names[number];
      const bool is_array = frame.attrs.types[number] == XLA_FFI_AttrType_ARRAY;
      if (is_array && span.len == strlen(name) && memcmp(span.ptr, name, span.len) == 0) {
        numbers = static_cast<const XLA_FFI_Array*>(frame.attrs.attrs[number]);
      }
    }
    if (numbers == nullptr) return;
    const int64_t count = frame.args.size - 1;
    if (numbers->dtype != XLA_FFI_DataType_S64 || count < 0 || numbers->size != static_cast<size_t>(count)) {
      wrong = "a call of a layer needs addresses and a number for each argument";
      return;
    }
    const AnyBuffer addresses(static_cast<const XLA_FFI_Buffer*>(frame.args.args[0]));
    buffers.resize(count), args.resize(count);
    for (int64_t place = 0; place < count; ++place) {
      buffers[place] = *static_cast<const XLA_FFI_Buffer*>(frame.args.args[1 + place]), args[place] = &buffers[place];
      const int64_t number = static_cast<const int64_t*>(numbers->data)[place];
      if (number < 0) continue;
      if ((number + 1) * sizeof(void*) > addresses.size_bytes()) {
        wrong = "an argument of a layer has no address";
        return;
      }
      memcpy(&buffers[place].data, static_cast<const char*>(addresses.untyped_data()) + number * sizeof(void*), sizeof(void*));
    }
    call.args.args = args.data(), call.args.types = frame.args.types + 1, call.args.size = count;
  }

  XLA_FFI_CallFrame call;
  const char* wrong = nullptr;
  std::vector<XLA_FFI_Buffer> buffers;
  std::vector<void*> args;
};

template <typename... Parameters>
XLA_FFI_Error* call(Error (*function)(Parameters...), XLA_FFI_CallFrame* frame, std::initializer_list<const char*> names) {
  if (frame->struct_size < XLA_FFI_CallFrame_STRUCT_SIZE) {
    return given(frame->api, "XLA's interface is older than this library", XLA_FFI_Error_Code_INVALID_ARGUMENT);
  }
  const auto* const extension = frame->extension_start;
  if (extension != nullptr && extension->type == XLA_FFI_Extension_Metadata) {
    return tell_version(*reinterpret_cast<const XLA_FFI_Metadata_Extension*>(extension)->metadata);
  }
  const Arguments arguments(*frame);
  Frame rest{arguments.call, names.begin(), static_cast<int64_t>(names.size())};
  rest.wrong = arguments.wrong;
  const std::tuple<Parameters...> parameters{Take<Parameters>::from(rest)...};
  if (!rest.wrong && (rest.args != rest.call.args.size || rest.rets != rest.call.rets.size)) {
    rest.wrong = "more arguments or results than the function has";
  }
  const char* const message = rest.wrong ? rest.wrong : std::apply(function, parameters).message();
  return message ? given(frame->api, message, XLA_FFI_Error_Code_INVALID_ARGUMENT) : nullptr;
}

}  // namespace native::ffi

// The custom call `name`, which is `function`; behind it the names of its attributes, in the order of its parameters.
#define XLA_CUSTOM_CALL(name, function, ...)                           \
  extern "C" XLA_FFI_Error* name(XLA_FFI_CallFrame* frame) {           \
    return native::ffi::call(function, frame, {__VA_ARGS__});          \
  }
