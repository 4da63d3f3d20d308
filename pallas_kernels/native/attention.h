// Attention of rows of tokens over pages of keys and values on a CPU, by all threads of a pool.
//
// A task is a tile: a few tokens of a row with the query heads of one KV head. It goes through the row's positions in blocks that lie
// at fixed places of the sequence, with an online softmax in base 2. What a query gets does not depend on its tile: a score is summed in
// lanes as products are, weights are summed and values added position by position, and a block that a query does not see changes
// nothing (weights of 2^-inf, a decay of 2^0).

#pragma once

#include <math.h>

#include <vector>

#include "product.h"

namespace native {

constexpr int64_t POSITIONS = 64;     // of a block
constexpr int64_t TILE_QUERIES = 48;  // of a tile, about
constexpr float UNSEEN = -1e30f;      // finite: the largest of no scores stays a number
constexpr int64_t WORTH_WAKING = 1 << 18;  // products of a query's and a key's number, for which other threads are asked
constexpr float LOG2_E = 1.44269504f;

// Rows as the op's contract has them. q [places, heads, head_size] of the type of the pages; pages [pages, page_tokens,
// 2 * kv_heads, head_size] of bfloat16 or float32; table [rows, table_pages]; offsets [rows + 1]; starts [rows]; sinks and slopes
// [heads] or null; out [places, heads, head_size]. `window` and `soft_cap` are 0 where there is none.
struct Attention {
  bool wide;  // float32
  int64_t places, heads, head_size, kv_heads, num_pages, page_tokens, rows, table_pages;
  const void *q, *pages;
  const int32_t *table, *offsets, *starts;
  const float *sinks, *slopes;
  float scale, soft_cap;
  int64_t window;
  float* out;

  int64_t group() const { return heads / kv_heads; }
};

struct Tile {
  int64_t row, first, count;  // tokens of the row
};

// 2^x elementwise to about a unit in the last place, 0 below the smallest normal number; x is at most 0, or not a number.
INLINE Vector power_of_two(Vector x) {
  const float shift = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to an integer
  const Vector low = Vector{} - 126.0f;
  const Integers there = x >= low;
  const Vector clamped = x < low ? low : x;  // what is no number passes
  const Vector moved = clamped + shift, whole = moved - shift, rest = clamped - whole;
  Vector p = rest * 1.5403530e-4f + 1.33335581e-3f;  // Taylor's: (ln 2)^n / n!
  p = p * rest + 9.61812911e-3f;
  p = p * rest + 5.55041087e-2f;
  p = p * rest + 2.40226507e-1f;
  p = p * rest + 6.93147181e-1f;
  p = p * rest + 1.0f;
  const Integers exponent = (((Integers)moved - 0x4b400000) + 127) << 23;
  const Vector found = p * (Vector)exponent;
  return there | (x != x) ? found : Vector{};
}

INLINE Vector hyperbolic_tangent(Vector x) {
  const Vector magnitude = x < 0 ? -x : x;
  const Vector power = power_of_two(magnitude * (-2 * LOG2_E));
  const Vector found = (1.0f - power) / (1.0f + power);
  return x < 0 ? -found : found;
}

// A tile's work, in memory of its own.
template <typename Value>
class Attending {
 public:
  Attending(const Attention& attention, const Tile& tile, int64_t kv_head)
      : a_(attention), tile_(tile), kv_head_(kv_head), queries_(tile.count * attention.group()), split_(queries_, ROWS),
        size_((attention.head_size + CHUNK - 1) / CHUNK * CHUNK), keys_(new Value[POSITIONS * size_]),
        values_(new Value[POSITIONS * size_]), packed_(new float[queries_ * size_]), mixed_(queries_ * size_),
        largest_(queries_, UNSEEN), total_(queries_) {}

  void run() {
    for (int64_t query = 0; query < queries_; ++query) {
      if (a_.sinks != nullptr) largest_[query] = a_.sinks[head(query)] * LOG2_E, total_[query] = 1;
    }
    for (int64_t part = 0; part < split_.count; ++part) {
      for (int64_t r = 0; r < split_.size(part); ++r) {
        pack(query(split_.start(part) + r), 0, 1, a_.head_size, packed(part) + r * LANES, split_.size(part));
      }
    }
    const int64_t first = position(0), end = position(queries_ - 1) + 1;
    const int64_t lowest = a_.window == 0 ? 0 : larger(0, first - a_.window + 1);
    for (int64_t block = lowest / POSITIONS * POSITIONS; block < end; block += POSITIONS) {
      const int64_t low = larger(lowest - block, 0), high = smaller(end - block, POSITIONS);
      read(block, low, high);
      for (int64_t part = 0; part < split_.count; ++part) {
#define ROWS_OF(R) case R: if constexpr (R <= ROWS) attend<R>(part, block, low, high); break;
        switch (split_.size(part)) { ROWS_OF(1) ROWS_OF(2) ROWS_OF(3) ROWS_OF(4) ROWS_OF(5) ROWS_OF(6) }
#undef ROWS_OF
      }
    }
    for (int64_t query = 0; query < queries_; ++query) write(query);
  }

 private:
  // Query `n` is a head of the group for token `n / group`.
  int64_t head(int64_t query) const { return kv_head_ * a_.group() + query % a_.group(); }
  int64_t token(int64_t query) const { return tile_.first + query / a_.group(); }
  int64_t position(int64_t query) const { return a_.starts[tile_.row] + token(query); }
  int64_t place(int64_t query) const { return ((a_.offsets[tile_.row] + token(query)) * a_.heads + head(query)) * a_.head_size; }
  const Value* query(int64_t query) const { return static_cast<const Value*>(a_.q) + place(query); }
  float* packed(int64_t part) const { return packed_.get() + split_.start(part) * size_; }

  // Keys and values of a block's positions [low, high), together: in their pages they lie as far apart as makes them share a place
  // of the cache.
  void read(int64_t block, int64_t low, int64_t high) {
    const int64_t size = a_.head_size, token_size = 2 * a_.kv_heads * size;
    for (int64_t at = low; at < high; ++at) {
      const int64_t page = a_.table[tile_.row * a_.table_pages + smaller((block + at) / a_.page_tokens, a_.table_pages - 1)];
      const int64_t within = smaller(larger(page, 0), a_.num_pages - 1) * a_.page_tokens + (block + at) % a_.page_tokens;
      const Value* key = static_cast<const Value*>(a_.pages) + within * token_size + 2 * kv_head_ * size;
      Value *own_key = &keys_[at * size_], *own_value = &values_[at * size_];
      memcpy(own_key, key, size * sizeof(Value));
      memcpy(own_value, key + size, size * sizeof(Value));
      memset(own_key + size, 0, (size_ - size) * sizeof(Value));
      memset(own_value + size, 0, (size_ - size) * sizeof(Value));
    }
  }

  template <int R>
  void attend(int64_t part, int64_t block, int64_t low, int64_t high) {
    const int64_t begin = split_.start(part);
    alignas(64) float scores[R][POSITIONS];
    for (int64_t at = low / OUTPUTS * OUTPUTS; at < high; at += OUTPUTS) {
      Given<Value> keys;
      for (int q = 0; q < OUTPUTS; ++q) keys.outputs[q] = &keys_[smaller(larger(at + q, low), high - 1) * size_];
      tile<R>(keys, packed(part), size_, Place{&scores[0][at], POSITIONS, OUTPUTS, true});
    }
    alignas(64) float decays[WIDTH * ((R + WIDTH - 1) / WIDTH)] = {};
    for (int r = 0; r < R; ++r) decays[r] = weigh(begin + r, block, low, high, scores[r]);
    for (int r = 0; r < R; r += WIDTH) {
      Vector& decay = *reinterpret_cast<Vector*>(decays + r);
      decay = power_of_two(decay);
    }
    for (int r = 0; r < R; ++r) total_[begin + r] = total_[begin + r] * decays[r] + sum_of(scores[r]);
    for (int64_t channel = 0; channel < size_; channel += CHUNK) mix<R>(begin, channel, low, high, scores, decays);
  }

  // Scores of a query become its weights; by which power of two its earlier sums decay.
  float weigh(int64_t query, int64_t block, int64_t low, int64_t high, float* scores) {
    const int64_t position = this->position(query) - block;
    const int64_t last = smaller(high - 1, position);
    const int64_t first = a_.window == 0 ? low : larger(low, position - a_.window + 1);
    const float slope = a_.slopes == nullptr ? 0 : a_.slopes[head(query)] * LOG2_E;
    Vector most = Vector{} + largest_[query];
    for (int64_t at = 0; at < POSITIONS; at += WIDTH) {
      Integers number;
      for (int i = 0; i < WIDTH; ++i) number[i] = i;
      number += static_cast<int32_t>(at);
      Vector score = *reinterpret_cast<Vector*>(scores + at);
      if (a_.soft_cap != 0) {
        score = hyperbolic_tangent(score * (a_.scale / a_.soft_cap)) * (a_.soft_cap * LOG2_E);
      } else {
        score *= a_.scale * LOG2_E;
      }
      score += slope * __builtin_convertvector(number - static_cast<int32_t>(position), Vector);
      const Integers seen = (number >= static_cast<int32_t>(first)) & (number <= static_cast<int32_t>(last));
      score = seen ? score : Vector{} - INFINITY;
      *reinterpret_cast<Vector*>(scores + at) = score;
      most = score > most ? score : most;
    }
    float largest = most[0];
    for (int i = 1; i < WIDTH; ++i) largest = most[i] > largest ? most[i] : largest;
    for (int64_t at = 0; at < POSITIONS; at += WIDTH) {
      Vector& score = *reinterpret_cast<Vector*>(scores + at);
      score = power_of_two(score - largest);
    }
    const float decay = largest_[query] - largest;
    largest_[query] = largest;
    return decay;
  }

  static float sum_of(const float* weights) {
    Vector sum = {};
    for (int64_t at = 0; at < POSITIONS; at += WIDTH) sum += *reinterpret_cast<const Vector*>(weights + at);
    float total = sum[0];
    for (int i = 1; i < WIDTH; ++i) total += sum[i];
    return total;
  }

  // Values of `CHUNK` channels, by their weights, onto what was mixed before; they lie as `widened` takes them apart.
  template <int R>
  void mix(int64_t begin, int64_t channel, int64_t low, int64_t high, const float (&weights)[R][POSITIONS], const float* decays) {
    Vector sums[R][2][PARTS];
    auto place = [&](int r, int half, int part) -> Vector& {
      return *reinterpret_cast<Vector*>(&mixed_[(begin + r) * size_ + channel + half * LANES + part * WIDTH]);
    };
    UNROLLED for (int part = 0; part < PARTS; ++part) {
      UNROLLED for (int r = 0; r < R; ++r) {
        sums[r][0][part] = place(r, 0, part) * decays[r], sums[r][1][part] = place(r, 1, part) * decays[r];
      }
    }
    for (int64_t at = low; at < high; ++at) {
      const Value* values = &values_[at * size_ + channel];
      UNROLLED for (int part = 0; part < PARTS; ++part) {
        const Vector first = widened<false>(values, part), second = widened<true>(values, part);
        UNROLLED for (int r = 0; r < R; ++r) {
          sums[r][0][part] = first * weights[r][at] + sums[r][0][part];
          sums[r][1][part] = second * weights[r][at] + sums[r][1][part];
        }
      }
    }
    UNROLLED for (int part = 0; part < PARTS; ++part) {
      UNROLLED for (int r = 0; r < R; ++r) place(r, 0, part) = sums[r][0][part], place(r, 1, part) = sums[r][1][part];
    }
  }

  void write(int64_t query) {
    const float total = total_[query], factor = total > 0 || total != total ? 1 / total : 0;
    const float* mixed = &mixed_[query * size_];
    float* out = a_.out + place(query);
    const bool pairs = std::is_same<Value, uint16_t>::value;  // lay as `widened` has them
    for (int64_t channel = 0; channel < a_.head_size; ++channel) {
      const int64_t within = channel % CHUNK, lane = pairs ? within % 2 * LANES + within / 2 : within;
      out[channel] = mixed[channel - within + lane] * factor;
    }
  }

  const Attention& a_;
  const Tile tile_;
  const int64_t kv_head_, queries_;
  const Split split_;
  const int64_t size_;  // of a head, with zeros up to whole chunks
  const std::unique_ptr<Value[]> keys_, values_;
  const std::unique_ptr<float[]> packed_;
  std::vector<float> mixed_, largest_, total_;
};

template <typename Schedule>
void attend(const Attention& attention, int64_t threads, const Schedule& schedule) {
  const int64_t length = larger(1, TILE_QUERIES / attention.group());
  std::vector<Tile> tiles;
  int64_t work = 0;  // pairs of a query and a position, about
  for (int64_t row = 0; row < attention.rows; ++row) {
    const int64_t count = attention.offsets[row + 1] - attention.offsets[row];
    for (int64_t first = 0; first < count; first += length) {
      tiles.push_back({row, first, smaller(length, count - first)});
      work += smaller(length, count - first) * attention.heads * (attention.starts[row] + first);
    }
  }
  const int64_t used = attention.offsets[attention.rows] * attention.heads * attention.head_size;
  memset(attention.out + used, 0, (attention.places * attention.heads * attention.head_size - used) * sizeof(float));
  if (work * attention.head_size < WORTH_WAKING) threads = 1;
  in_parallel(tiles.size() * attention.kv_heads, threads, schedule, [&](int64_t number) {
    Rounding rounding;
    const Tile& tile = tiles[number / attention.kv_heads];
    const int64_t kv_head = number % attention.kv_heads;
    if (attention.wide) {
      Attending<float>(attention, tile, kv_head).run();
    } else {
      Attending<uint16_t>(attention, tile, kv_head).run();
    }
  });
}

}  // namespace native
