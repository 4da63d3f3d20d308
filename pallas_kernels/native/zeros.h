// Zeros that the system writes when they are first asked for.

#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace native {

// Linux forgets what was in the pages of a program's own memory, gives them back as zeros when they are next looked at, and takes large
// ones where it is asked to. Only whole large pages are given up, whatever pages the memory is of; the rest is written.
inline void make_zeros(void* data, size_t size) {
#ifdef __linux__
  constexpr uintptr_t LARGE = 2 << 20;
  const auto begin = reinterpret_cast<uintptr_t>(data), end = begin + size;
  const uintptr_t first = (begin + LARGE - 1) / LARGE * LARGE, last = end / LARGE * LARGE;
  void* const inner = reinterpret_cast<void*>(first);
  if (first < last && madvise(inner, last - first, MADV_DONTNEED) == 0) {
    madvise(inner, last - first, MADV_HUGEPAGE);
    memset(data, 0, first - begin);
    memset(reinterpret_cast<void*>(last), 0, end - last);
    return;
  }
#endif
  memset(data, 0, size);
}

}  // namespace native
