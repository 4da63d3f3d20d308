// Attention of rows of tokens over pages of keys and values on a CPU, by all threads of a pool.
//
// A task is a tile, a few tokens of a row, with some KV heads and the query heads of these. It goes through the row's positions in
// blocks that lie at fixed places of the sequence, with an online softmax in base 2. What a query gets does not depend on its tile: a score is
// summed in lanes as products are, weights are summed and values added position by position, and a block that a query does not see
// changes nothing (weights of 2^-inf, a decay of 2^0).

#pragma once

#include <vector>

#include "product.h"
#include "softmax.h"

namespace native {

constexpr int64_t POSITIONS = 64;     // of a block
constexpr int64_t TILE_QUERIES = 48;  // of a tile, about
constexpr int64_t BLOCK_BYTES = 256 << 10;  // of keys and values of a block and a task, at most: this block's and the next one's
                                             // stay in the second cache

// Rows as the op's contract has them. q [places, heads, head_size] of the type of the pages; pages [pages, page_tokens,
// 2 * kv_heads, head_size] of bfloat16 or float32; table [rows, table_pages]; offsets [rows + 1]; starts [rows]; sinks and slopes
// [heads] or null; until [places] or null; out [places, heads, head_size]. `window` and `soft_cap` are 0 where there is none.
struct Attention {
  int64_t places, heads, head_size, kv_heads, num_pages, page_tokens, rows, table_pages;
  const void *q, *pages;
  const int32_t *table, *offsets, *starts;
  const float *sinks, *slopes;
  const int32_t* until = nullptr;
  float scale, soft_cap;
  int64_t window;
  float* out;

  int64_t group() const { return heads / kv_heads; }

  // The last position that a row's token sees.
  int64_t last(int64_t row, int64_t token) const { return until == nullptr ? starts[row] + token : until[offsets[row] + token]; }
};

INLINE int64_t whole_chunks(int64_t size) { return (size + CHUNK - 1) / CHUNK * CHUNK; }

// Some tokens of a row, and the positions that they see together.
struct Tile {
  int64_t row, first, count, lowest, end;

  Tile(const Attention& a, int64_t row, int64_t first, int64_t count)
      : row(row), first(first), count(count),
        lowest(a.window == 0 ? 0 : larger(0, a.starts[row] + first - a.window + 1)), end(a.last(row, first + count - 1) + 1) {}
};

// A tile's work with KV heads [first, end).
struct Task {
  const Tile* tile;
  int64_t first, end;
};

// `size` numbers, and zeros up to whole chunks.
template <typename Value>
INLINE void copy(const Value* from, Value* to, int64_t size) {
  int64_t done = 0;
  for (; done + CHUNK <= size; done += CHUNK) memcpy(to + done, from + done, CHUNK * sizeof(Value));
  if (done == size) return;
  memset(to + done, 0, CHUNK * sizeof(Value));
  memcpy(to + done, from + done, (size - done) * sizeof(Value));
}

template <typename Value>
class Attending {
  static constexpr bool PAIRS = BFLOAT16_PAIRS && std::is_same<Value, uint16_t>::value;
  typedef typename std::conditional<PAIRS, Value, float>::type Packed;

 public:
  // `next` is the task that the thread has next, probably, or null.
  Attending(const Attention& attention, const Task& task, const Task* next)
      : a_(attention), task_(task), next_(next), tile_(*task.tile), first_head_(task.first), heads_(task.end - task.first),
        of_head_(tile_.count * attention.group()), split_(of_head_, ROWS), size_(whole_chunks(attention.head_size)),
        in_place_(split_.count == 1 && size_ == attention.head_size && attention.page_tokens % OUTPUTS == 0),
        copied_(in_place_ ? 0 : 2 * POSITIONS * size_), packed_(queries() * size_),
        mixed_(queries() * size_), largest_(queries(), UNSEEN), total_(queries()) {
    for (int64_t query = 0; query < queries(); ++query) {
      if (a_.sinks != nullptr) largest_[query] = a_.sinks[head(query)] * LOG2_E, total_[query] = 1;
    }
    for (int64_t head = 0; head < heads_; ++head) {
      for (int64_t part = 0; part < split_.count; ++part) prepare(begin(head, part), split_.size(part));
    }
  }

  // `asked`: for the first block.
  void run(bool asked) {
    const int64_t first = first_block(tile_);
    if (!asked) {
      begin_asking(&task_, first, POSITIONS);
      for (int64_t piece = 0; piece < heads_ * POSITIONS; ++piece) ask_for_more();
    }
    for (int64_t block = first; block < tile_.end; block += POSITIONS) {
      const int64_t low = larger(tile_.lowest - block, 0), high = smaller(tile_.end - block, POSITIONS);
      if (block + POSITIONS < tile_.end) {
        begin_asking(&task_, block + POSITIONS, high - low);
      } else {
        begin_asking(next_, next_ == nullptr ? 0 : first_block(*next_->tile), high - low);
      }
      if (in_place_) find(block, low / OUTPUTS * OUTPUTS, high);
      for (int64_t head = 0; head < heads_; ++head) {
        if (!in_place_) read(head, block, low, high);
        for (int64_t part = 0; part < split_.count; ++part) {
#define ROWS_OF(R) case R: if constexpr (R <= ROWS) attend<R>(head, begin(head, part), block, low, high); break;
          switch (split_.size(part)) { ROWS_OF(1) ROWS_OF(2) ROWS_OF(3) ROWS_OF(4) ROWS_OF(5) ROWS_OF(6) }
#undef ROWS_OF
        }
      }
    }
    for (int64_t query = 0; query < queries(); ++query) write(query);
  }

 private:
  // Queries of a KV head follow those of the one before; of its own, `n` is a head of the group for token `n / group`.
  int64_t queries() const { return heads_ * of_head_; }
  int64_t begin(int64_t head, int64_t part) const { return head * of_head_ + split_.start(part); }
  int64_t head(int64_t query) const { return (first_head_ + query / of_head_) * a_.group() + query % a_.group(); }
  int64_t token(int64_t query) const { return tile_.first + query % of_head_ / a_.group(); }
  int64_t position(int64_t query) const { return a_.starts[tile_.row] + token(query); }
  int64_t place(int64_t query) const { return ((a_.offsets[tile_.row] + token(query)) * a_.heads + head(query)) * a_.head_size; }
  const Value* query(int64_t query) const { return static_cast<const Value*>(a_.q) + place(query); }
  Packed* packed(int64_t query) const { return packed_.get() + query * size_; }

  // Where a position's keys and values begin.
  const Value* cached(int64_t row, int64_t position) const {
    const int64_t entry = smaller(position / a_.page_tokens, a_.table_pages - 1);
    const int64_t page = smaller(larger(a_.table[row * a_.table_pages + entry], 0), a_.num_pages - 1);
    return static_cast<const Value*>(a_.pages) + (page * a_.page_tokens + position % a_.page_tokens) * token_step();
  }

  // Call `f(at, key, end)` for the places of a block page by page: from `at` to `end` keys follow each other, `key` is the first.
  template <typename F>
  INLINE_MEMBER void by_page(int64_t block, int64_t low, int64_t high, const F& f) const {
    for (int64_t at = low, end; at < high; at = end) {
      end = smaller(high, at + a_.page_tokens - (block + at) % a_.page_tokens);
      f(at, cached(tile_.row, block + at) + first_head_ * 2 * a_.head_size, end);
    }
  }

  // Queries of one tile multiply keys and values once: these are read where they lie.
  void find(int64_t block, int64_t low, int64_t high) {
    by_page(block, low, high, [&](int64_t at, const Value* key, int64_t end) {
      for (; at < end; ++at, key += token_step()) found_[at] = key;
    });
  }

  // Others find a head's together: in their pages they lie as far apart as makes them share a place of the cache.
  void read(int64_t head, int64_t block, int64_t low, int64_t high) {
    by_page(block, low, high, [&](int64_t at, const Value* key, int64_t end) {
      for (key += head * 2 * a_.head_size; at < end; ++at, key += token_step()) {
        copy(key, &copied_[at * size_], a_.head_size);
        copy(key + a_.head_size, &copied_[(POSITIONS + at) * size_], a_.head_size);
        ask_for_more();
      }
    });
  }

  int64_t token_step() const { return a_.kv_heads * 2 * a_.head_size; }
  const Value* key(int64_t head, int64_t at) const {
    return in_place_ ? found_[at] + head * 2 * a_.head_size : &copied_[at * size_];
  }
  int64_t key_step() const { return in_place_ ? token_step() : size_; }
  int64_t value_behind_key() const { return in_place_ ? a_.head_size : POSITIONS * size_; }

  static int64_t first_block(const Tile& tile) { return tile.lowest / POSITIONS * POSITIONS; }

  // While a block is read, head by head, the next one is asked for piece by piece in the order in which it lies: memory delivers
  // twice as fast so. A piece is a head's keys and values of a position. A task of one head multiplies more than it reads.
  void begin_asking(const Task* task, int64_t block, int64_t positions) {
    asked_end_ = 0;
    if (task == nullptr || task->end - task->first < 2) return;
    asked_task_ = task, asked_ = larger(block, task->tile->lowest), asked_end_ = smaller(block + POSITIONS, task->tile->end);
    pieces_at_once_ = (POSITIONS + positions - 1) / positions;
    if (asked_ < asked_end_) begin_page();
  }

  void begin_page() {
    page_left_ = a_.page_tokens - asked_ % a_.page_tokens;
    heads_left_ = asked_task_->end - asked_task_->first;
    asked_from_ = cached(asked_task_->tile->row, asked_) + asked_task_->first * 2 * a_.head_size;
  }

  // Inlined: compilers leave out calls of functions that only ask.
  INLINE_MEMBER void ask_for_more() {
    for (int64_t piece = 0; piece < pieces_at_once_ && asked_ < asked_end_; ++piece) {
      const char* from = reinterpret_cast<const char*>(asked_from_);
      for (int64_t byte = 0; byte < 2 * a_.head_size * int64_t(sizeof(Value)); byte += 64) __builtin_prefetch(from + byte, 0, 2);
      asked_from_ += 2 * a_.head_size;
      if (--heads_left_ > 0) continue;
      ++asked_;
      if (--page_left_ > 0) {
        heads_left_ = asked_task_->end - asked_task_->first;
        asked_from_ += token_step() - heads_left_ * 2 * a_.head_size;
      } else if (asked_ < asked_end_) {
        begin_page();
      }
    }
  }

  // Queries as their products take them.
  void prepare(int64_t begin, int64_t count) {
    for (int64_t r = 0; r < count; ++r) {
      const Value* from = query(begin + r);
      if constexpr (PAIRS) {
        copy(from, packed(begin) + r * size_, a_.head_size);
      } else {
        pack(from, 0, 1, a_.head_size, packed(begin) + r * LANES, count);
      }
    }
  }

  // Products of R queries with the keys of `OUTPUTS` places.
  template <int R>
  void multiply(int64_t head, int64_t begin, int64_t at, int64_t low, int64_t high, float* scores) {
    const Place place{scores + at, POSITIONS, OUTPUTS, true};
#if BFLOAT16_PAIRS
    if constexpr (PAIRS) return tile_of_pairs<R, 0>(key(head, at), nullptr, packed(begin), key_step(), size_, size_, place);
#endif
    if constexpr (!PAIRS) {
      Given<Value> keys;
      for (int q = 0; q < OUTPUTS; ++q) keys.outputs[q] = key(head, smaller(larger(at + q, low), high - 1));
      tile<R>(keys, packed(begin), size_, place);
    }
  }

  template <int R>
  void attend(int64_t head, int64_t begin, int64_t block, int64_t low, int64_t high) {
    alignas(64) float scores[R][POSITIONS];
    for (int64_t at = low / OUTPUTS * OUTPUTS; at < high; at += OUTPUTS) {
      multiply<R>(head, begin, at, low, high, &scores[0][0]);
      for (int q = 0; in_place_ && q < OUTPUTS; ++q) ask_for_more();
    }
    alignas(64) float decays[WIDTH * ((R + WIDTH - 1) / WIDTH)] = {};
    for (int r = 0; r < R; ++r) decays[r] = weigh(begin + r, block, low, high, scores[r]);
    for (int r = 0; r < R; r += WIDTH) {
      Vector& decay = *reinterpret_cast<Vector*>(decays + r);
      decay = power_of_two(decay);
    }
    for (int r = 0; r < R; ++r) total_[begin + r] = total_[begin + r] * decays[r] + total_of(scores[r]);
    for (int64_t channel = 0; channel < size_; channel += CHUNK) mix<R>(head, begin, channel, low, high, scores, decays);
  }

  // Scores of a query become its weights; by which power of two its earlier sums decay.
  float weigh(int64_t query, int64_t block, int64_t low, int64_t high, float* scores) {
    const int64_t position = this->position(query) - block;
    const int64_t last = smaller(high - 1, a_.last(tile_.row, token(query)) - block), first = a_.window == 0 ? low : larger(low, position - a_.window + 1);
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
    const float largest = largest_of(most);
    for (int64_t at = 0; at < POSITIONS; at += WIDTH) {
      Vector& score = *reinterpret_cast<Vector*>(scores + at);
      score = power_of_two(score - largest);
    }
    const float decay = largest_[query] - largest;
    largest_[query] = largest;
    return decay;
  }

  static float total_of(const float* weights) {
    Vector sum = {};
    for (int64_t at = 0; at < POSITIONS; at += WIDTH) sum += *reinterpret_cast<const Vector*>(weights + at);
    return sum_of(sum);
  }

  // Values of `CHUNK` channels, by their weights, onto what was mixed before; they lie as `widened` takes them apart.
  template <int R>
  void mix(int64_t head, int64_t begin, int64_t channel, int64_t low, int64_t high, const float (&weights)[R][POSITIONS],
           const float* decays) {
    const int64_t behind = value_behind_key() + channel;
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
      const Value* values = key(head, at) + behind;
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
  const Task &task_, *const next_;
  const Tile& tile_;
  const int64_t first_head_, heads_, of_head_;  // `of_head_`: queries
  const Split split_;
  const int64_t size_;  // of a head, with zeros up to whole chunks
  const bool in_place_;
  const InLines<Value> copied_;  // a head's keys of a block, and then its values
  const Value* found_[POSITIONS];          // or where those of a block begin
  const InLines<Packed> packed_;
  std::vector<float> mixed_, largest_, total_;
  const Task* asked_task_ = nullptr;  // whose block is asked for, from position `asked_` on
  const Value* asked_from_ = nullptr;
  int64_t asked_ = 0, asked_end_ = 0, page_left_ = 0, heads_left_ = 0, pieces_at_once_ = 1;
};

// `Value` is what pages hold: `uint16_t` are bits of bfloat16.
template <typename Value, typename Schedule>
void attend(const Attention& a, int64_t threads, const Schedule& schedule) {
  const int64_t length = larger(1, TILE_QUERIES / a.group());
  std::vector<Tile> tiles;
  int64_t work = 0;  // pairs of a query and a position, about
  for (int64_t row = 0; row < a.rows; ++row) {
    const int64_t count = a.offsets[row + 1] - a.offsets[row];
    for (int64_t first = 0; first < count; first += length) {
      tiles.emplace_back(a, row, first, smaller(length, count - first));
      work += tiles.back().count * a.heads * (tiles.back().end - tiles.back().lowest);
    }
  }
  const int64_t used = a.offsets[a.rows] * a.heads * a.head_size;
  memset(a.out + used, 0, (a.places * a.heads * a.head_size - used) * sizeof(float));
  if (work * a.head_size < WORTH_WAKING) threads = 1;

  // Few queries wait for memory, many multiply: a task of few has as many heads as leave one for each thread.
  const int64_t enough = static_cast<int64_t>(tiles.size()) * a.kv_heads / threads;
  const int64_t fit = BLOCK_BYTES / (POSITIONS * 2 * a.head_size * int64_t(sizeof(Value)));
  std::vector<Task> tasks;
  for (const Tile& tile : tiles) {
    const Split heads(a.kv_heads, tile.count * a.group() > ROWS ? 1 : larger(1, smaller(fit, enough)));
    for (int64_t part = 0; part < heads.count; ++part) tasks.push_back({&tile, heads.start(part), heads.start(part + 1)});
  }
  const int64_t count = tasks.size();
  const auto follows = [&](int64_t number) { return number < count && !begins_run(number, count, threads); };
  in_parallel(count, threads, schedule, [&](int64_t number) {
    Rounding rounding;
    const Task* next = follows(number + 1) ? &tasks[number + 1] : nullptr;
    Attending<Value>(a, tasks[number], next).run(follows(number));
  });
}

}  // namespace native
