// SPDX-License-Identifier: Apache-2.0
//
// Sums of memory that show a changed word of 32 bits, and mend it: the parity
// of the words by lane, after Huang and Abraham, "Algorithm-Based Fault
// Tolerance for Matrix Operations", 1984, whose columns and rows these are. A
// word that has changed is found by its lane's parity, which says how it has
// changed; two further parities of rotated words say where it is.
#ifndef CAPSTAN_KERNELS_CONTEXT_WORD_SUMS_H_
#define CAPSTAN_KERNELS_CONTEXT_WORD_SUMS_H_

#include <cstdint>
#include <cstring>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"  // nothing here crosses a call

namespace capstan {

// Of a block of words: word i is in lane i % kLanes, and in group i / kGroup.
struct WordSums {
  static constexpr int kLanes = 16;
  static constexpr int64_t kGroup = 32 * kLanes;  // words
  static constexpr int64_t kBlock = 32 * kGroup;  // at most

  typedef uint32_t Lanes __attribute__((vector_size(4 * kLanes)));

  Lanes parity = {};
  // Of the words, each rotated by how many rows of lanes, or groups, follow it.
  Lanes by_row = {};
  Lanes by_group = {};

  // Adds whole groups but at a block's end, `words` in all. Inlined into code
  // for each instruction set.
  inline __attribute__((always_inline)) void Add(const void* from,
                                                 int64_t words) {
    const auto* bytes = static_cast<const uint8_t*>(from);
    while (words > 0) {
      const int64_t count = words < kGroup ? words : kGroup;
      Lanes group = {};
      int64_t i = 0;
      for (; i + kLanes <= count; i += kLanes) {
        Lanes row;
        std::memcpy(&row, bytes + 4 * i, sizeof(row));
        group ^= row;
        by_row = (by_row << 1 | by_row >> 31) ^ row;
      }
      if (i < count) {
        Lanes row = {};
        std::memcpy(&row, bytes + 4 * i, 4 * (count - i));
        group ^= row;
        by_row = (by_row << 1 | by_row >> 31) ^ row;
      }
      parity ^= group;
      by_group = (by_group << 1 | by_group >> 31) ^ group;
      bytes += 4 * count;
      words -= count;
    }
  }
};

// The parity alone.
inline __attribute__((always_inline)) void AddParity(const void* from,
                                                     int64_t words,
                                                     WordSums::Lanes* parity) {
  const auto* bytes = static_cast<const uint8_t*>(from);
  WordSums::Lanes sums[2] = {};
  int64_t i = 0;
  for (; i + 2 * WordSums::kLanes <= words; i += 2 * WordSums::kLanes) {
    WordSums::Lanes rows[2];
    std::memcpy(rows, bytes + 4 * i, sizeof(rows));
    sums[0] ^= rows[0];
    sums[1] ^= rows[1];
  }
  for (; i < words; i += WordSums::kLanes) {
    WordSums::Lanes row = {};
    std::memcpy(
        &row, bytes + 4 * i,
        4 * (words - i < WordSums::kLanes ? words - i : WordSums::kLanes));
    sums[0] ^= row;
  }
  *parity ^= sums[0] ^ sums[1];
}

}  // namespace capstan

#pragma GCC diagnostic pop

#endif  // CAPSTAN_KERNELS_CONTEXT_WORD_SUMS_H_
