// What weights become while they are loaded: no calls of XLA.

#include "coding.h"

// Rows [first, last) of `to`, `[outputs, inputs]`, from where `from` has them one behind the other.
extern "C" void code_rows(const uint16_t* from, uint8_t* to, int64_t outputs, int64_t inputs, int64_t first, int64_t last) {
  const native::Coded<uint8_t> coded{to, outputs, inputs};
  for (int64_t output = first; output < last; ++output, from += inputs) native::code_row(from, coded, output);
}
