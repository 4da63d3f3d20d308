// Work shared by the threads of a pool. Nothing here knows of XLA: `decoder.cc` and its like do.

#pragma once

#include <stdint.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "cores.h"

namespace native {

// Numbers too small for a normal float are zero, as XLA's own code has them; whatever the thread was set to.
class Rounding {
 public:
#if defined(__x86_64__)
  Rounding() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80 | 0x8040); }
  ~Rounding() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#else
  Rounding() {}
  ~Rounding() {}
#endif
};

// The first task of a thread's run, of so many tasks for so many threads.
inline int64_t start_of_run(int64_t thread, int64_t count, int64_t threads) { return count * thread / threads; }

// Whether nobody does the task before this one just before it, but that runs change hands as threads get free.
inline bool begins_run(int64_t number, int64_t count, int64_t threads) {
  const int64_t taking = threads < count ? threads : count;
  return start_of_run((number * taking + count - 1) / count, count, taking) == number;
}

// Numbers of tasks for some threads. Each has a run of numbers that follow one another: their data does, too, and what a task asks for
// ahead of itself is what the same thread reads next. Who has none left takes the later half of another's run.
class Runs {
 public:
  Runs(int64_t count, int64_t threads) : threads_(threads), runs_(new Run[threads]) {
    for (int64_t thread = 0; thread < threads; ++thread) {
      runs_[thread].store(run(start_of_run(thread, count, threads), start_of_run(thread + 1, count, threads)), std::memory_order_relaxed);
    }
  }

  // A thread that begins on the core of another one moves to one of its own. Linux may leave both there for 10 ms and more while other
  // cores are idle: one that is idle only for moments takes nobody over.
  void take_core(int64_t thread) {
    std::atomic<int>& own = runs_[thread].core;
    own.store(current_core(), std::memory_order_relaxed);
    const auto taken = [&](int core) { return of_another(thread, core); };
    if (!taken(own.load(std::memory_order_relaxed))) return;
    move_to_free_core(taken);
    own.store(current_core(), std::memory_order_relaxed);
  }

  // The next number of a thread; -1: there is none.
  int64_t next(int64_t thread) {
    do {
      uint64_t own = runs_[thread].load(std::memory_order_relaxed);
      while (first(own) < last(own)) {
        if (exchange(thread, own, run(first(own) + 1, last(own)))) return first(own);
      }
    } while (take_from_others(thread));
    return -1;
  }

 private:
  struct alignas(64) Run : std::atomic<uint64_t> {  // a line of the caches for each
    std::atomic<int> core{NO_CORE};
  };

  bool of_another(int64_t thread, int core) const {
    for (int64_t other = 0; core != NO_CORE && other < threads_; ++other) {
      if (other != thread && runs_[other].core.load(std::memory_order_relaxed) == core) return true;
    }
    return false;
  }

  static uint64_t run(uint64_t first, uint64_t last) { return first << 32 | last; }
  static int64_t first(uint64_t run) { return static_cast<int64_t>(run >> 32); }
  static int64_t last(uint64_t run) { return static_cast<int64_t>(run & 0xffffffff); }

  bool exchange(int64_t thread, uint64_t& seen, uint64_t run) {
    return runs_[thread].compare_exchange_weak(seen, run, std::memory_order_relaxed);
  }

  bool take_from_others(int64_t thread) {
    for (int64_t other = 0; other < threads_; ++other) {
      uint64_t seen = runs_[other].load(std::memory_order_relaxed);
      while (first(seen) < last(seen)) {
        const int64_t middle = (first(seen) + last(seen)) / 2, end = last(seen);
        if (!exchange(other, seen, run(first(seen), middle))) continue;
        runs_[thread].store(run(middle, end), std::memory_order_relaxed);  // nobody else changes an empty one
        return true;
      }
    }
    return false;
  }

  const int64_t threads_;
  const std::unique_ptr<Run[]> runs_;
};

// Tasks by number. The caller takes part and waits only for tasks that somebody has begun, so a pool whose threads are all busy, or all
// callers themselves, costs time and never stops.
template <typename Task>
class Shared {
 public:
  Shared(int64_t count, int64_t threads, const Task* task) : count_(count), task_(task), runs_(count, threads) {}

  void work(int64_t thread) {
    int64_t done = 0;
    runs_.take_core(thread);
    for (int64_t number; (number = runs_.next(thread)) >= 0; ++done) (*task_)(number);
    if (done == 0 || done_.fetch_add(done, std::memory_order_acq_rel) + done < count_) return;
    std::lock_guard<std::mutex> lock(mutex_);
    all_done_.notify_one();
  }

  void wait() {
    // The others end at about the same time, and to be woken takes longer than that.
    for (int turn = 0; turn < TURNS; ++turn) {
      if (all_done()) return;
      pause();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [this] { return all_done(); });
  }

 private:
  static constexpr int TURNS = 4000;  // 100 microseconds on an EPYC; a pause is of another length elsewhere

  bool all_done() const { return done_.load(std::memory_order_acquire) == count_; }

  static void pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }

  const int64_t count_;
  const Task* const task_;  // of the caller; nobody who comes late looks at it
  Runs runs_;
  std::atomic<int64_t> done_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
};

// `schedule(f)` has a thread of the pool call `f` at some time.
template <typename Schedule, typename Task>
void in_parallel(int64_t count, int64_t threads, const Schedule& schedule, const Task& task) {
  if (count <= 1 || threads <= 1) {
    for (int64_t number = 0; number < count; ++number) task(number);
    return;
  }
  const int64_t taking = threads < count ? threads : count;
  auto shared = std::make_shared<Shared<Task>>(count, taking, &task);
  for (int64_t helper = 1; helper < taking; ++helper) schedule([shared, helper] { shared->work(helper); });
  shared->work(0);
  shared->wait();
}

}  // namespace native
