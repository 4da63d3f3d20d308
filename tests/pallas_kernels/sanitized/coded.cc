// Products of rows with matrices in 12 bits.

#include "coded.h"
#include "driver.h"

using namespace native;

#if WIDTH == 16
// Rows of any bits come back, and products have the bits of the plain matrix.
static int check_coded(int64_t rows, int64_t inputs, int64_t outputs, int64_t threads) {
  std::vector<uint16_t> x(rows * inputs), plain(outputs * inputs), coded(outputs * (inputs + sizeof(Head) / 2)), again(inputs);
  std::vector<float> wanted(rows * outputs), found(rows * outputs);
  for (auto& value : x) value = some_bfloat16();
  for (auto& value : plain) value = some_bfloat16();
  for (int64_t i = 0; i < inputs; ++i) plain[i] = static_cast<uint16_t>(i % 2 ? i << 7 : 0);  // any number but NaN among zeros
  for (int64_t i = 0; i < inputs && outputs > 1; i += 32) plain[inputs + i] = static_cast<uint16_t>((i / 32 % 24) << 8);
  for (auto& value : plain) value = (value & 0x7f80) == 0x7f80 ? 0 : value;
  const Coded<uint8_t> to{reinterpret_cast<uint8_t*>(coded.data()), outputs, inputs};
  int wrong = 0;
  for (int64_t output = 0; output < outputs; ++output) code_row(plain.data() + output * inputs, to, output);
  const CodedMatrix matrix{to.bytes, outputs, inputs};
  for (int64_t output = 0; output < outputs; ++output) {
    decode_row(matrix, output, again.data());
    wrong += memcmp(again.data(), plain.data() + output * inputs, inputs * sizeof(uint16_t)) != 0;
  }
  std::vector<int32_t> numbers = {-1, 0, static_cast<int32_t>(outputs)};
  std::vector<uint16_t> taken(numbers.size() * inputs);
  std::vector<std::thread> pool;
  const auto schedule = [&](auto&& task) { pool.emplace_back(std::move(task)); };
  take_coded(matrix, numbers.data(), numbers.size(), taken.data(), threads, schedule);
  const uint16_t* last = plain.data() + (outputs - 1) * inputs;
  wrong += memcmp(taken.data(), plain.data(), inputs * sizeof(uint16_t)) != 0;
  wrong += memcmp(taken.data() + 2 * inputs, last, inputs * sizeof(uint16_t)) != 0;
  std::vector<uint8_t> scratch(prepared_bytes(Kind::bfloat16, rows, inputs));
  Product product{Kind::bfloat16, rows, inputs, outputs, x.data(), plain.data(), nullptr, wanted.data(), scratch.data()};
  multiply<Kind::bfloat16>(&product, 1, threads, schedule);
  product.weight = coded.data(), product.out = found.data();
  multiply_coded(&product, 1, threads, schedule);
  wrong += memcmp(found.data(), wanted.data(), found.size() * sizeof(float)) != 0;
  for (auto& thread : pool) thread.join();
  if (wrong > 0) std::fprintf(stderr, "coded: %ld rows of %ld with %ld outputs by %ld threads are wrong\n", rows, inputs, outputs, threads);
  return wrong;
}
#endif

int main() {
  int wrong = 0;
#if WIDTH == 16
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 36, 37, 70}) {
    for (int64_t inputs : {128, 1664}) {
      for (int64_t outputs : {1, 70}) wrong += check_coded(rows, inputs, outputs, 3);
    }
  }
  wrong += check_coded(300, 896, 520, 1);  // by one thread: whole tasks
#endif
  return agreed(wrong);
}
