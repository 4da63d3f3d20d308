// Custom calls of XLA for matrices and pages of float32.

#include "attention_call.h"
#include "product_call.h"

XLA_CUSTOM_CALL(product_of_float32, native::multiply_call<native::Kind::float32>)

XLA_CUSTOM_CALL(attention_of_float32, native::attend_call<float>, "scale", "soft_cap", "window")

XLA_CUSTOM_CALL(write_of_float32, native::write_call<float>)
