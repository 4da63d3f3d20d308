// The value from which on the values of a row weigh enough, without sorting them.
//
// Numbers become integers in their order. The highest bits of the one that is looked for are those of a group of numbers, by what
// each group weighs; the bits that follow come from that group alone.

#pragma once

#include <math.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "product.h"

namespace native {

// values [rows, size], no NaN among them; weights as values, none negative and 2^31 - 1 a row at most, or null: each weighs 1;
// floors and targets [rows]; out [rows].
struct Threshold {
  int64_t rows, size;
  const float* values;
  const int32_t* weights;
  const float* floors;
  const int32_t* targets;
  float* out;
};

typedef uint32_t Keys __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

// Integers in the order of the numbers, those too small for a normal float being 0 as they are where they are compared.
INLINE Keys keys_of(Vector values) {
  const Integers bits = (Integers)values, normal = (bits & 0x7fffffff) >= 0x00800000;
  return (Keys)((bits ^ (bits >> 31 & 0x7fffffff)) & normal) ^ 0x80000000u;
}

INLINE float number_of(uint32_t key) {
  const auto bits = static_cast<int32_t>(key ^ 0x80000000u);
  const int32_t found = bits ^ (bits >> 31 & 0x7fffffff);
  float value;
  memcpy(&value, &found, sizeof(value));
  return value;
}

INLINE bool any_of(Integers flags) {
#if WIDTH == 16
  return _mm512_test_epi32_mask((__m512i)flags, (__m512i)flags) != 0;
#elif WIDTH == 8
  return !_mm256_testz_si256((__m256i)flags, (__m256i)flags);
#else
  return (flags[0] | flags[1] | flags[2] | flags[3]) != 0;
#endif
}

// What numbers weigh by some bits of their keys: in turn onto several sums, as one alone would wait for what was added before.
template <int BITS>
class Groups {
 public:
  void add(uint32_t group, size_t turn, int32_t weight) { sums_[turn % TURNS][group] += weight; }

  // The highest group that reaches `target` with those above it, which what these weigh is taken from; the lowest, if none does.
  uint32_t reaching(int64_t& target) const {
    for (uint32_t group = COUNT - 1;; --group) {
      int64_t weight = 0;
      for (const auto& sums : sums_) weight += sums[group];
      if (weight >= target || group == 0) return group;
      target -= weight;
    }
  }

 private:
  static constexpr int TURNS = 4, COUNT = 1 << BITS;
  uint32_t sums_[TURNS][COUNT] = {};
};

struct Weighed {
  uint32_t key;
  int32_t weight;
};

constexpr int HIGHEST = 10, NEXT = 11;  // bits of a key: 10, 11 and 11

class Searching {
 public:
  Searching(const Threshold& of, int64_t row)
      : values_(of.values + row * of.size), weights_(of.weights == nullptr ? nullptr : of.weights + row * of.size), size_(of.size),
        target_(of.targets[row]), floor_(of.floors[row]) {}

  float found() {
    if (target_ < 1) return floor_;
    if (weights_ == nullptr) raise_floor();
    Groups<HIGHEST> groups;
    each([&](uint32_t key, size_t turn, int32_t weight) { groups.add(key >> (32 - HIGHEST), turn, weight); });
    int64_t target = target_;
    const uint32_t highest = groups.reaching(target);
    raised_ = number_of(highest << (32 - HIGHEST));
    std::vector<Weighed> left;
    each([&](uint32_t key, size_t, int32_t weight) {
      if (key >> (32 - HIGHEST) == highest) left.push_back({key, weight});
    });
    next_bits(left, NEXT, target);
    next_bits(left, 0, target);
    return left.empty() || target > weight_of(left) ? floor_ : number_of(left[0].key);
  }

 private:
  static constexpr int64_t BLOCK_VECTORS = 32;

  // Of so many numbers of blocks, the largest of each, the target's is one that reaches it: what is below needs no looking at.
  void raise_floor() {
    const int64_t blocks = size_ / (WIDTH * BLOCK_VECTORS);
    if (target_ > blocks * WIDTH / 2) return;
    std::vector<float> largest(blocks * WIDTH);
    for (int64_t block = 0; block < blocks; ++block) {
      const float* values = values_ + block * WIDTH * BLOCK_VECTORS;
      Vector most[4];
      UNROLLED for (int i = 0; i < 4; ++i) most[i] = at(values + i * WIDTH);
      for (int64_t i = 4; i < BLOCK_VECTORS; i += 4) {
        UNROLLED for (int j = 0; j < 4; ++j) {
          const Vector next = at(values + (i + j) * WIDTH);
          most[j] = next > most[j] ? next : most[j];
        }
      }
      UNROLLED for (int i = 1; i < 4; ++i) most[0] = most[i] > most[0] ? most[i] : most[0];
      *reinterpret_cast<Vector*>(&largest[block * WIDTH]) = most[0];
    }
    const auto place = largest.begin() + target_ - 1;
    std::nth_element(largest.begin(), place, largest.end(), std::greater<float>());
    raised_ = *place > floor_ ? *place : floor_;
  }

  static Vector at(const float* from) { return *reinterpret_cast<const Vector*>(from); }

  // Call `f(key, turn, weight)` for the numbers from the floor on.
  template <typename F>
  INLINE_MEMBER void each(const F& f) const {
    const float floor = raised_ > floor_ ? raised_ : floor_;
    int64_t done = 0;
    for (; done + WIDTH <= size_; done += WIDTH) {
      const Vector values = at(values_ + done);
      const Integers seen = values >= floor;
      if (any_of(seen)) some(keys_of(values), seen, done, f);
    }
    for (; done < size_; ++done) {
      if (values_[done] >= floor) f(keys_of(Vector{} + values_[done])[0], done, weight(done));
    }
  }

  template <typename F>
  INLINE_MEMBER void some(Keys keys, Integers seen, int64_t done, const F& f) const {
    UNROLLED for (int i = 0; i < WIDTH; ++i) {
      if (seen[i]) f(keys[i], i, weight(done + i));
    }
  }

  int32_t weight(int64_t at) const { return weights_ == nullptr ? 1 : weights_[at]; }

  static int64_t weight_of(const std::vector<Weighed>& these) {
    int64_t weight = 0;
    for (const Weighed& one : these) weight += one.weight;
    return weight;
  }

  // Leave those that have the next bits too, which `shift` bits follow.
  static void next_bits(std::vector<Weighed>& these, int shift, int64_t& target) {
    Groups<NEXT> groups;
    const auto bits = [shift](const Weighed& one) { return one.key >> shift & ((1u << NEXT) - 1); };
    for (size_t i = 0; i < these.size(); ++i) groups.add(bits(these[i]), i, these[i].weight);
    const uint32_t found = groups.reaching(target);
    these.erase(std::remove_if(these.begin(), these.end(), [&](const Weighed& one) { return bits(one) != found; }), these.end());
  }

  const float* const values_;
  const int32_t* const weights_;
  const int64_t size_, target_;
  const float floor_;
  float raised_ = -INFINITY;
};

// The largest of a row's values from its floor on that weighs the target or more with those above it; the floor, if none does.
template <typename Schedule>
void find_thresholds(const Threshold& of, int64_t threads, const Schedule& schedule) {
  in_parallel(of.rows, threads, schedule, [&](int64_t row) {
    Rounding rounding;
    of.out[row] = Searching(of, row).found();
  });
}

}  // namespace native
