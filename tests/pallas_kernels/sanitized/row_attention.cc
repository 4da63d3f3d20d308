// Attention within rows.

#include "driver.h"
#include "row_attention.h"

using namespace native;

// Rows of one token, of none, of several tasks.
static int check_rows(int64_t head_size, int64_t heads, int64_t kv_heads, int64_t window) {
  const std::vector<int32_t> offsets = {0, 1, 1, 201, 270};
  const int64_t places = 273;
  std::vector<float> q(places * heads * head_size), keys(places * kv_heads * head_size), values(keys.size()), out(q.size(), NAN);
  for (std::vector<float>* some : {&q, &keys, &values}) {
    for (auto& value : *some) value = as_float(some_bfloat16());
  }
  RowAttention a;
  a.places = places, a.heads = heads, a.kv_heads = kv_heads, a.head_size = head_size, a.rows = 4, a.window = window;
  a.q = q.data(), a.keys = keys.data(), a.values = values.data(), a.offsets = offsets.data(), a.scale = 0.2f, a.out = out.data();
  std::vector<std::thread> pool;
  attend_rows(a, 3, [&](auto&& task) { pool.emplace_back(std::move(task)); });
  for (auto& thread : pool) thread.join();
  int wrong = 0;
  for (int64_t row = 0; row < a.rows; ++row) {
    for (int64_t token = offsets[row]; token < offsets[row + 1]; ++token) {
      const int64_t first = window < 0 ? offsets[row] : larger(offsets[row], token - window);
      const int64_t last = window < 0 ? offsets[row + 1] : smaller(offsets[row + 1], token + window + 1);
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t place = (token * heads + head) * head_size;
        std::vector<double> mixed(head_size);
        double total = 0;
        for (int64_t key = first; key < last; ++key) {
          const int64_t from = (key * kv_heads + head * kv_heads / heads) * head_size;
          double score = 0;
          for (int64_t i = 0; i < head_size; ++i) score += double(q[place + i]) * keys[from + i];
          const double weight = std::exp(0.2 * score);
          total += weight;
          for (int64_t i = 0; i < head_size; ++i) mixed[i] += weight * values[from + i];
        }
        for (int64_t i = 0; i < head_size; ++i) wrong += !(std::fabs(out[place + i] - mixed[i] / total) <= 1e-4);
      }
    }
  }
  for (size_t i = offsets.back() * heads * head_size; i < out.size(); ++i) wrong += out[i] != 0;
  if (wrong) fprintf(stderr, "attention within rows, %ld heads of %ld: %d wrong\n", long(heads), long(head_size), wrong);
  return wrong;
}

int main() {
  int wrong = 0;
  for (int64_t head_size : {20, 32, 80}) {
    wrong += check_rows(head_size, 2, 2, -1);
    wrong += check_rows(head_size, 4, 2, 70);
  }
  return agreed(wrong);
}
