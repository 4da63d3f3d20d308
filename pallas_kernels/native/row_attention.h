// Attention within rows on a CPU: every token sees its whole row, or what is near it, and nothing is kept.
//
// A task is some queries of a row with one head. Its keys are turned, so that 64 of them are lanes, and its values are lanes of channels:
// scores and what they mix are the tiles of `lane_tile.h`. A query's numbers do not depend on the queries beside it: what it does
// not see has weight zero.

#pragma once

#include <vector>

#include "lane_tile.h"
#include "product.h"
#include "softmax.h"

namespace native {

constexpr int64_t KEYS = 64;             // that are lanes of a tile
constexpr int64_t TASK_QUERIES = 192;    // at most

// q [places, heads, head_size], keys and values [places, kv_heads, head_size], out as q, all of float32; offsets [rows + 1].
// `window` places on each side are seen, -1 being all.
struct RowAttention {
  int64_t places, heads, kv_heads, head_size, rows, window;
  const float *q, *keys, *values;
  const int32_t* offsets;
  float scale;
  float* out;
};

struct RowTask {
  int64_t row, head, first, count;  // queries of the row
};

class RowAttending {
 public:
  RowAttending(const RowAttention& a, const RowTask& task)
      : a_(a), task_(task), place_(a.offsets[task.row]), length_(a.offsets[task.row + 1] - place_),
        low_(a.window < 0 ? 0 : larger(0, task.first - a.window) / KEYS * KEYS),
        high_(a.window < 0 ? length_ : smaller(length_, task.first + task.count + a.window)),
        seen_((high_ - low_ + WIDTH - 1) / WIDTH * WIDTH), channels_((a.head_size + WIDTH - 1) / WIDTH * WIDTH),
        turned_((seen_ + KEYS - 1) / KEYS * KEYS * a.head_size), values_(seen_ * channels_), queries_(TILE_ROWS * a.head_size), weights_(TILE_ROWS * seen_) {}

  void run() {
    read();
    const Split tiles(task_.count, TILE_ROWS);
    for (int64_t part = 0; part < tiles.count; ++part) {
      with_rows(tiles.size(part), [&](auto rows) { attend<rows.value>(task_.first + tiles.start(part)); });
    }
  }

 private:
  int64_t query_at(int64_t query) const { return ((place_ + query) * a_.heads + task_.head) * a_.head_size; }

  // Keys and values of the task, and zeros behind the row.
  void read() {
    const int64_t head = task_.head / (a_.heads / a_.kv_heads), size = a_.head_size;
    for (int64_t at = 0; at < seen_; ++at) {
      float* turned = &turned_[at / KEYS * KEYS * size + at % KEYS];
      float* values = &values_[at * channels_];
      if (low_ + at >= high_) {
        for (int64_t channel = 0; channel < size; ++channel) turned[channel * KEYS] = 0;
        memset(values, 0, channels_ * sizeof(float));
        continue;
      }
      const int64_t from = ((place_ + low_ + at) * a_.kv_heads + head) * size;
      for (int64_t channel = 0; channel < size; ++channel) turned[channel * KEYS] = a_.keys[from + channel];
      memcpy(values, a_.values + from, size * sizeof(float));
      memset(values + size, 0, (channels_ - size) * sizeof(float));
    }
  }

  template <int R>
  __attribute__((noinline)) void attend(int64_t query) {
    for (int r = 0; r < R; ++r) scale_query(a_.q + query_at(query + r), &queries_[r * a_.head_size]);
    for (int64_t at = 0; at < seen_; at += KEYS) {
      const int64_t lanes = smaller(KEYS, seen_ - at);
      for (int64_t lane = 0; lane < lanes; lane += MOST_VECTORS * WIDTH) {
        with_vectors(lanes - lane, [&](auto vectors) { score<R, vectors.value>(at, lane); });
      }
    }
    float factors[R];
    for (int r = 0; r < R; ++r) factors[r] = weigh(r, query + r);
    for (int64_t channel = 0; channel < channels_; channel += MOST_VECTORS * WIDTH) {
      with_vectors(channels_ - channel, [&](auto vectors) { mix<R, vectors.value>(query, channel, factors); });
    }
  }

  void scale_query(const float* from, float* to) const {
    const float factor = a_.scale * LOG2_E;
    int64_t channel = 0;
    for (; channel + WIDTH <= a_.head_size; channel += WIDTH) {
      *reinterpret_cast<Vector*>(to + channel) = *reinterpret_cast<const Vector*>(from + channel) * factor;
    }
    for (; channel < a_.head_size; ++channel) to[channel] = from[channel] * factor;
  }

  // Calls `f` with as many vectors as so many numbers fill, or the most of a tile.
  template <typename F>
  static void with_vectors(int64_t numbers, const F& f) {
    switch (smaller(MOST_VECTORS, numbers / WIDTH)) {
#define VECTORS_OF(V) \
  case V: if constexpr (V <= MOST_VECTORS) return f(std::integral_constant<int, V>()); break;
      VECTORS_OF(1) VECTORS_OF(2) VECTORS_OF(3) VECTORS_OF(4)
#undef VECTORS_OF
    }
  }

  // Of R queries with V vectors of keys.
  template <int R, int V>
  __attribute__((noinline)) void score(int64_t at, int64_t lane) {
    Vector sums[R][V] = {};
    multiply_lines<false>(&turned_[at * a_.head_size + lane], KEYS, WIDTH, a_.head_size,
                          reinterpret_cast<const uint8_t*>(queries_.get()), a_.head_size * sizeof(float), sums);
    UNROLLED for (int r = 0; r < R; ++r) {
      UNROLLED for (int v = 0; v < V; ++v) *weights(r, at + lane + WIDTH * v) = sums[r][v];
    }
  }

  Vector* weights(int r, int64_t at) const { return reinterpret_cast<Vector*>(&weights_[r * seen_ + at]); }

  // Scores of a query become its weights; what their sum divides by.
  float weigh(int r, int64_t query) {
    const auto first = static_cast<int32_t>(a_.window < 0 ? 0 : larger(0, query - a_.window) - low_);
    const auto last = static_cast<int32_t>((a_.window < 0 ? length_ : smaller(length_, query + a_.window + 1)) - low_);
    Integers numbers;
    for (int i = 0; i < WIDTH; ++i) numbers[i] = i;
    Vector most = Vector{} + UNSEEN;
    for (int64_t at = 0; at < seen_; at += WIDTH) {
      Vector& score = *weights(r, at);
      const Integers number = numbers + static_cast<int32_t>(at);
      score = (number >= first) & (number < last) ? score : Vector{} - INFINITY;
      most = score > most ? score : most;
    }
    const float largest = largest_of(most);
    Vector sum = {};
    for (int64_t at = 0; at < seen_; at += WIDTH) {
      Vector& score = *weights(r, at);
      score = power_of_two(score - largest);
      sum += score;
    }
    return 1 / sum_of(sum);
  }

  template <int R, int V>
  __attribute__((noinline)) void mix(int64_t query, int64_t channel, const float* factors) {
    Vector sums[R][V] = {};
    multiply_lines<false>(&values_[channel], channels_, WIDTH, high_ - low_, reinterpret_cast<const uint8_t*>(weights_.get()),
                          seen_ * sizeof(float), sums);
    const int64_t count = a_.head_size - channel;
    if (count >= V * WIDTH) {
      UNROLLED for (int r = 0; r < R; ++r) {
        float* out = a_.out + query_at(query + r) + channel;
        UNROLLED for (int v = 0; v < V; ++v) *reinterpret_cast<Vector*>(out + WIDTH * v) = sums[r][v] * factors[r];
      }
      return;
    }
    alignas(LINE) float found[R][V * WIDTH];
    UNROLLED for (int r = 0; r < R; ++r) {
      UNROLLED for (int v = 0; v < V; ++v) *reinterpret_cast<Vector*>(&found[r][WIDTH * v]) = sums[r][v] * factors[r];
    }
    for (int r = 0; r < R; ++r) memcpy(a_.out + query_at(query + r) + channel, found[r], count * sizeof(float));
  }

  const RowAttention& a_;
  const RowTask& task_;
  const int64_t place_, length_, low_, high_, seen_, channels_;
  const InLines<float> turned_, values_, queries_, weights_;
};

template <typename Schedule>
void attend_rows(const RowAttention& a, int64_t threads, const Schedule& schedule) {
  std::vector<RowTask> tasks;
  int64_t work = 0;  // pairs of a query and a key
  for (int64_t row = 0; row < a.rows; ++row) {
    const int64_t length = a.offsets[row + 1] - a.offsets[row];
    const Split parts(length, TASK_QUERIES);
    for (int64_t part = 0; part < parts.count; ++part) {
      for (int64_t head = 0; head < a.heads; ++head) tasks.push_back({row, head, parts.start(part), parts.size(part)});
    }
    work += a.heads * length * (a.window < 0 ? length : smaller(length, 2 * a.window + 1));
  }
  const int64_t used = a.offsets[a.rows] * a.heads * a.head_size;
  memset(a.out + used, 0, (a.places * a.heads * a.head_size - used) * sizeof(float));
  if (work * a.head_size < WORTH_WAKING) threads = 1;
  in_parallel(tasks.size(), threads, schedule, [&](int64_t number) {
    Rounding rounding;
    RowAttending(a, tasks[number]).run();
  });
}

}  // namespace native
