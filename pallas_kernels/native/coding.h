// Matrices of bfloat16 in 12 bits a number, without loss. The upper bytes of a row, signs and exponents but for the last bit, are
// nearly always among 16: each is kept by its number among them, in 4 bits, and the lower byte as it is. `coder.cc` makes them as
// weights are loaded, `coded.h` multiplies.
//
// All rows, one behind the other, each a `Head` and its numbers; then what plain rows have no room for, a quarter of each row. Of
// every `PIECE` inputs first the codes lie, those of the second half in upper bits, then the lower bytes: in each 16 eight of the first
// 32 inputs and eight of the next, so that to interleave both gives inputs in order. All is for vectors of 64 bytes.

#pragma once

#include <stdint.h>
#include <string.h>

namespace native {

constexpr int64_t PIECE = 128, PIECE_BYTES = 192, HALF_PIECE = PIECE / 2;
constexpr int CODES = 16, MOST_OTHERS = 11;
constexpr uint8_t PLAIN = 255;  // of `others`: more are not among the 16 than there is room for, and the row is kept as it is

// A line of the caches, so that vectors of numbers lie in one each.
struct Head {
  uint8_t upper[CODES];
  uint8_t others, unused[3];
  uint32_t other[MOST_OTHERS];  // upper bytes that are not among the 16, and, from bit 8 on, whose they are
};

// `[outputs, inputs]`, of whose inputs there are whole pieces. `Byte`: const or not.
template <typename Byte>
struct Coded {
  Byte* bytes;
  int64_t outputs, inputs;

  int64_t row_bytes() const { return int64_t(sizeof(Head)) + inputs / PIECE * PIECE_BYTES; }
  Byte* row(int64_t output) const { return bytes + output * row_bytes(); }
  Byte* numbers(int64_t output) const { return row(output) + sizeof(Head); }
  Byte* rest(int64_t output) const { return bytes + outputs * row_bytes() + output * (inputs / 2); }
  int64_t fitting() const { return inputs / 4 * 3; }  // numbers of a plain row that lie where others have codes
};

constexpr int64_t MOST_CODED_INPUTS = int64_t(1) << 24;

// Where a number of a piece has its lower byte; its code lies there or `HALF_PIECE` before.
inline int64_t place_in_piece(int64_t input) {
  const int64_t half = input / HALF_PIECE, second = input / 32 % 2, eight = input / 8 % 4;
  return half * HALF_PIECE + eight * 16 + second * 8 + input % 8;
}

// Keep a row of a matrix. Codes are numbered by the bytes they stand for; of more than 16 bytes the most frequent have them.
inline void code_row(const uint16_t* from, const Coded<uint8_t>& to, int64_t output) {
  uint32_t counts[4][256] = {};  // in turn: to count the same byte again waits for the time before
  for (int64_t i = 0; i < to.inputs; i += 4) {
    for (int k = 0; k < 4; ++k) ++counts[k][from[i + k] >> 8];
  }
  Head head = {};
  uint8_t codes[256] = {};
  bool coded[256] = {};
  uint32_t all[256];
  int different = 0;
  for (int byte = 0; byte < 256; ++byte) {
    all[byte] = counts[0][byte] + counts[1][byte] + counts[2][byte] + counts[3][byte];
    different += all[byte] != 0;
  }
  uint32_t least = 1;  // how often a byte must be there
  while (different > CODES) {
    uint32_t next = UINT32_MAX;
    for (int byte = 0; byte < 256; ++byte) next = all[byte] > least && all[byte] < next ? all[byte] : next;
    least = next, different = 0;
    for (int byte = 0; byte < 256; ++byte) different += all[byte] >= least;
    if (next == UINT32_MAX) break;
  }
  int used = 0;
  for (int byte = 0; byte < 256 && used < CODES; ++byte) {
    if (all[byte] < least) continue;
    head.upper[used] = static_cast<uint8_t>(byte), codes[byte] = static_cast<uint8_t>(used++), coded[byte] = true;
  }
  int64_t others = to.inputs;
  for (int byte = 0; byte < 256; ++byte) others -= coded[byte] ? all[byte] : 0;
  uint8_t* numbers = to.numbers(output);
  uint8_t* rest = to.rest(output);
  if (others > MOST_OTHERS) {
    head.others = PLAIN;
    memcpy(to.row(output), &head, sizeof(head));
    memcpy(numbers, from, to.fitting() * sizeof(*from));
    memcpy(rest, from + to.fitting(), to.inputs / 4 * sizeof(*from));
    return;
  }
  for (int64_t i = 0; others > 0 && i < to.inputs; ++i) {
    const uint8_t upper = from[i] >> 8;
    if (!coded[upper]) head.other[head.others++] = upper | static_cast<uint32_t>(i) << 8, --others;
  }
  memcpy(to.row(output), &head, sizeof(head));
  memset(rest, 0, to.inputs / 2);
  for (int64_t piece = 0; piece < to.inputs; piece += PIECE, numbers += PIECE_BYTES) {
    for (int64_t eight = 0; eight < HALF_PIECE; eight += 8) {
      const uint16_t* first = from + piece + eight;
      const uint16_t* second = first + HALF_PIECE;
      const int64_t place = place_in_piece(eight);
      for (int i = 0; i < 8; ++i) {
        numbers[place + i] = codes[first[i] >> 8] | codes[second[i] >> 8] << 4;
        numbers[HALF_PIECE + place + i] = static_cast<uint8_t>(first[i]);
        numbers[PIECE + place + i] = static_cast<uint8_t>(second[i]);
      }
    }
  }
}

// The row again.
inline void decode_row(const Coded<const uint8_t>& from, int64_t output, uint16_t* to) {
  Head head;
  memcpy(&head, from.row(output), sizeof(head));
  const uint8_t* numbers = from.numbers(output);
  if (head.others == PLAIN) {
    memcpy(to, numbers, from.fitting() * sizeof(*to));
    memcpy(to + from.fitting(), from.rest(output), from.inputs / 4 * sizeof(*to));
    return;
  }
  for (int64_t piece = 0; piece < from.inputs; piece += PIECE, numbers += PIECE_BYTES) {
    for (int64_t i = 0; i < HALF_PIECE; ++i) {
      const int64_t place = place_in_piece(i);
      to[piece + i] = numbers[HALF_PIECE + place] | head.upper[numbers[place] & 15] << 8;
      to[piece + HALF_PIECE + i] = numbers[PIECE + place] | head.upper[numbers[place] >> 4] << 8;
    }
  }
  for (int i = 0; i < head.others; ++i) {
    uint16_t& number = to[head.other[i] >> 8];
    number = (number & 0xff) | (head.other[i] & 0xff) << 8;
  }
}

}  // namespace native
