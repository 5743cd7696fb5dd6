// SPDX-License-Identifier: Apache-2.0
#include "kernels/witness/memory_sums.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/simd/instruction_set.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace capstan::kernels {
namespace {

constexpr int64_t kBlock = WordSums::kBlock;

ALWAYS_INLINE void AddTo(const void* from, int64_t words, WordSums* sums) {
  sums->Add(from, words);
}
ALWAYS_INLINE void AddParityTo(const void* from, int64_t words,
                               WordSums::Lanes* parity) {
  AddParity(from, words, parity);
}

uint32_t Rotated(uint32_t x, int64_t by) {
  by %= 32;
  return by == 0 ? x : x << by | x >> (32 - by);
}

// run(block, first word, words), by threads.
template <typename Run>
void ForBlocks(int64_t bytes, const Run& run) {
  const int64_t words = bytes / 4, blocks = (words + kBlock - 1) / kBlock;
  at::parallel_for(0, blocks, 4, [&](int64_t block, int64_t end) {
    for (; block < end; ++block) {
      run(block, block * kBlock, std::min(kBlock, words - block * kBlock));
    }
  });
}

// The word of a lane whose change explains how all three parities have changed;
// -1: none, or not one alone.
int64_t Find(const WordSums& was, const WordSums& is, int lane, int64_t words) {
  const uint32_t change = was.parity[lane] ^ is.parity[lane];
  const uint32_t row_change = was.by_row[lane] ^ is.by_row[lane];
  const uint32_t group_change = was.by_group[lane] ^ is.by_group[lane];
  constexpr int64_t kLanes = WordSums::kLanes;
  const int64_t rows = (words + kLanes - 1) / kLanes;
  const int64_t groups = (words + WordSums::kGroup - 1) / WordSums::kGroup;
  int64_t found = -1;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t word = row * kLanes + lane;
    const int64_t group = word / WordSums::kGroup;
    if (word >= words || Rotated(change, rows - 1 - row) != row_change ||
        Rotated(change, groups - 1 - group) != group_change) {
      continue;
    }
    if (found >= 0) return -1;
    found = word;
  }
  return found;
}

}  // namespace

void MemorySums::TakeBlock(int64_t block, const void* memory, int64_t words) {
  static const auto add = BestOf<AddTo>();
  blocks_[block] = WordSums();
  add(memory, words, &blocks_[block]);
}

void MemorySums::Take(const void* memory, int64_t bytes) {
  blocks_.resize((bytes / 4 + kBlock - 1) / kBlock);
  ForBlocks(bytes, [&](int64_t block, int64_t first, int64_t words) {
    TakeBlock(block, static_cast<const char*>(memory) + 4 * first, words);
  });
}

std::vector<ChangedWord> MemorySums::Verify(void* memory, int64_t bytes) const {
  std::vector<ChangedWord> changes;
  std::mutex mutex;
  ForBlocks(bytes, [&](int64_t block, int64_t first, int64_t words) {
    std::vector<ChangedWord> mine;
    VerifyBlock(block, static_cast<char*>(memory) + 4 * first, words, &mine);
    if (mine.empty()) return;
    const std::lock_guard<std::mutex> lock(mutex);
    changes.insert(changes.end(), mine.begin(), mine.end());
  });
  return changes;
}

void MemorySums::VerifyBlock(int64_t block, void* memory, int64_t words,
                             std::vector<ChangedWord>* changes) const {
  static const auto add = BestOf<AddParityTo>();
  const WordSums& was = blocks_[block];
  alignas(64) WordSums::Lanes parity = {};
  add(memory, words, &parity);
  if (std::memcmp(&was.parity, &parity, sizeof(parity)) == 0) return;
  char* const from = static_cast<char*>(memory);
  alignas(64) WordSums is;
  is.Add(from, words);
  for (int lane = 0; lane < WordSums::kLanes; ++lane) {
    const uint32_t change = was.parity[lane] ^ is.parity[lane];
    if (change == 0) continue;
    ChangedWord changed;
    const int64_t word = Find(was, is, lane, words);
    changed.word = block * kBlock + (word < 0 ? lane : word);
    if (word >= 0) {
      std::memcpy(&changed.is, from + 4 * word, 4);
      changed.was = changed.is ^ change;
      std::memcpy(from + 4 * word, &changed.was, 4);
      changed.mended = true;
    }
    changes->push_back(changed);
  }
}

void ParityOfBytes(const void* from, int64_t bytes, void* out) {
  static const auto add = BestOf<AddParityTo>();
  alignas(64) WordSums::Lanes parity = {};
  add(from, bytes / 4, &parity);
  if (bytes % 4 != 0) {
    uint32_t last = 0;
    std::memcpy(&last, static_cast<const char*>(from) + bytes / 4 * 4,
                bytes % 4);
    parity[bytes / 4 % WordSums::kLanes] ^= last;
  }
  std::memcpy(out, &parity, sizeof(parity));
}

}  // namespace capstan::kernels
