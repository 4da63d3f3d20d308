// What the drivers have in common: each runs one kind of call on threads of its own and compares it with sums in double, while
// sanitizers watch.

#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "product.h"

static float as_float(uint16_t bfloat16) {
  const uint32_t bits = uint32_t(bfloat16) << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static uint16_t some_bfloat16() { return static_cast<uint16_t>(0x3f00 + rand() % 256 + (rand() % 2 << 15)); }

// What a driver's main gives.
static int agreed(int wrong) {
  if (wrong == 0) puts("all agree");
  return wrong != 0;
}
