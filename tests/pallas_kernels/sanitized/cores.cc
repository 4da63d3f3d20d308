// Threads that begin on the core of another move, and may run afterwards where they might before.

#include "driver.h"
#include "threads.h"

using namespace native;

int main() {
  int wrong = 0;
#if defined(__linux__)
  cpu_set_t before, after;
  if (sched_getaffinity(0, sizeof(before), &before) != 0) return agreed(0);
  const auto unchanged = [&] { return sched_getaffinity(0, sizeof(after), &after) == 0 && CPU_EQUAL(&before, &after); };
  bool moved = CPU_COUNT(&before) == 1;
  for (int time = 0; time < 100 && !moved; ++time) {  // Linux may move it back at once
    Runs runs(2, 2);
    runs.take_core(0);
    const int core = current_core();
    runs.take_core(1);
    moved = current_core() != core;
    wrong += !unchanged();
  }
  wrong += !moved;
  move_to_free_core([](int) { return true; });
  wrong += !unchanged();
#endif
  return agreed(wrong);
}
