// What weights become while they are loaded, and what they were: no calls of XLA.

#include "coding.h"

// Rows [first, last) of `to`, `[outputs, inputs]`, from where `from` has them one behind the other.
extern "C" void code_rows(const uint16_t* from, uint8_t* to, int64_t outputs, int64_t inputs, int64_t first, int64_t last) {
  const native::Coded<uint8_t> coded{to, outputs, inputs};
  for (int64_t output = first; output < last; ++output, from += inputs) native::code_row(from, coded, output);
}

// All rows again.
extern "C" void decode_rows(const uint8_t* from, uint16_t* to, int64_t outputs, int64_t inputs) {
  const native::Coded<const uint8_t> coded{from, outputs, inputs};
  for (int64_t output = 0; output < outputs; ++output, to += inputs) native::decode_row(coded, output, to);
}
