// Custom calls of XLA for matrices of int8.

#include "product_call.h"

XLA_CUSTOM_CALL(product_of_int8, native::multiply_call<native::Kind::int8>)
