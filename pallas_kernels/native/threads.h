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

// Tasks by number, taken by whoever is free. The caller takes part and waits only for tasks that somebody has begun, so a pool
// whose threads are all busy, or all callers themselves, costs time and never stops.
template <typename Task>
class Shared {
 public:
  Shared(int64_t count, const Task* task) : count_(count), task_(task) {}

  void work() {
    int64_t done = 0;
    for (int64_t number; (number = next_.fetch_add(1, std::memory_order_relaxed)) < count_; ++done) (*task_)(number);
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
  std::atomic<int64_t> next_{0}, done_{0};
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
  auto shared = std::make_shared<Shared<Task>>(count, &task);
  for (int64_t helper = 1; helper < (threads < count ? threads : count); ++helper) schedule([shared] { shared->work(); });
  shared->work();
  shared->wait();
}

}  // namespace native
