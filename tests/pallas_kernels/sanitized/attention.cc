// Attention to pages.

#include "attention.h"
#include "driver.h"

using namespace native;

// Rows of one, of tiles and of none, which begin at 0, 5 and 70; the last two pages of a row's table are not there.
static int check_attention(bool wide, int64_t head_size, int64_t heads, int64_t kv_heads, int64_t window, bool extras, bool later = false) {
  const int64_t page_tokens = 8, row_pages = 20, padding = 3;
  const std::vector<int32_t> counts = {1, 0, 60, 7}, starts = {70, 5, 5, 0};
  std::vector<int32_t> offsets = {0}, table;
  for (int32_t count : counts) offsets.push_back(offsets.back() + count);
  for (int32_t page = 0; page < int32_t(counts.size() * row_pages); ++page) table.push_back(page % row_pages < 18 ? page : 1 << 30);
  const int64_t places = offsets.back() + padding, num_pages = counts.size() * row_pages;
  const int64_t queries = places * heads * head_size, kept = num_pages * page_tokens * 2 * kv_heads * head_size;
  std::vector<uint16_t> q16(queries), pages16(kept);
  std::vector<float> q32(queries), pages32(kept), sinks(heads, 0.3f), slopes(heads, 0.01f), out(queries, NAN);
  for (auto& value : q16) value = some_bfloat16();
  for (auto& value : pages16) value = some_bfloat16();
  for (int64_t i = 0; i < queries; ++i) q32[i] = as_float(q16[i]);
  for (int64_t i = 0; i < kept; ++i) pages32[i] = as_float(pages16[i]);
  Attention a;
  a.places = places, a.heads = heads, a.head_size = head_size, a.kv_heads = kv_heads;
  a.num_pages = num_pages, a.page_tokens = page_tokens, a.rows = counts.size(), a.table_pages = row_pages;
  a.q = wide ? (const void*)q32.data() : q16.data(), a.pages = wide ? (const void*)pages32.data() : pages16.data();
  a.table = table.data(), a.offsets = offsets.data(), a.starts = starts.data();
  a.sinks = extras ? sinks.data() : nullptr, a.slopes = extras ? slopes.data() : nullptr;
  a.scale = 0.2f, a.soft_cap = extras ? 3.0f : 0.0f, a.window = window, a.out = out.data();
  std::vector<int32_t> until(places, 1 << 30);  // those of a row see each other
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int32_t place = offsets[row]; place < offsets[row + 1]; ++place) until[place] = starts[row] + counts[row] - 1;
  }
  if (later) a.until = until.data();
  std::vector<std::thread> pool;
  const auto schedule = [&](auto&& task) { pool.emplace_back(std::move(task)); };
  wide ? attend<float>(a, 3, schedule) : attend<uint16_t>(a, 3, schedule);
  for (auto& thread : pool) thread.join();
  int wrong = 0;
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t token = 0; token < counts[row]; ++token) {
      const int64_t own = starts[row] + token, last = later ? until[offsets[row] + token] : own;
      const int64_t first = window == 0 ? 0 : larger(0, own - window + 1);
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t place = ((offsets[row] + token) * heads + head) * head_size;
        std::vector<double> mixed(head_size);
        double total = extras ? std::exp(0.3) : 0;
        for (int64_t position = first; position <= last; ++position) {
          const int64_t page = table[row * row_pages + position / page_tokens];
          const float* key = &pages32[((page * page_tokens + position % page_tokens) * 2 * kv_heads + head * kv_heads / heads * 2) * head_size];
          double score = 0;
          for (int64_t i = 0; i < head_size; ++i) score += double(q32[place + i]) * key[i];
          score *= a.scale;
          if (extras) score = 3 * std::tanh(score / 3) + 0.01 * double(position - own);
          total += std::exp(score);
          for (int64_t i = 0; i < head_size; ++i) mixed[i] += std::exp(score) * key[head_size + i];
        }
        for (int64_t i = 0; i < head_size; ++i) wrong += !(std::fabs(out[place + i] - mixed[i] / total) <= 1e-4);
      }
    }
  }
  for (int64_t i = offsets.back() * heads * head_size; i < queries; ++i) wrong += out[i] != 0;
  if (wrong) fprintf(stderr, "attention of %ld heads of %ld: %d wrong\n", long(heads), long(head_size), wrong);
  return wrong;
}

int main() {
  int wrong = 0;
  for (bool wide : {false, true}) {
    for (int64_t head_size : {20, 64}) {
      for (int64_t kv_heads : {1, 2}) {
        wrong += check_attention(wide, head_size, 6, kv_heads, 0, false);
        wrong += check_attention(wide, head_size, 6, kv_heads, 9, true);
        wrong += check_attention(wide, head_size, 6, kv_heads, kv_heads == 1 ? 9 : 0, true, true);
      }
    }
  }
  return agreed(wrong);
}
