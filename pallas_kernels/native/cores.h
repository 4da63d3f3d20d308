// Which core a thread runs on, and moving it to another.

#pragma once

#if defined(__linux__)
#include <sched.h>
#endif

namespace native {

constexpr int NO_CORE = -1;  // it is not known

inline int current_core() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return NO_CORE;
#endif
}

// Moves this thread to a core for which `taken(core)` is false, if it may run on one. On which it may run stays as it was.
template <typename Taken>
void move_to_free_core(const Taken& taken) {
#if defined(__linux__)
  cpu_set_t allowed, others;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  others = allowed;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &others) && taken(core)) CPU_CLR(core, &others);
  }
  if (CPU_COUNT(&others) != 0 && sched_setaffinity(0, sizeof(others), &others) == 0) sched_setaffinity(0, sizeof(allowed), &allowed);
#endif
}

}  // namespace native
