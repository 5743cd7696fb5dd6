// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_MERGE_TABLE_H_
#define CAPSTAN_TEXT_TOKENIZER_MERGE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace capstan {
namespace tokenizer {

// What becomes of two tokens side by side.
struct Merge {
  uint32_t rank;  // the lowest goes first
  uint32_t id;    // of the token that the two become
};

constexpr uint32_t kNoRank = ~uint32_t{0};

// Pairs of tokens to merges: a hash table of open addresses.
class MergeTable {
 public:
  // Room for `merges` of them.
  explicit MergeTable(size_t merges) {
    size_t slots = 16;
    while (slots < 2 * merges) slots *= 2;
    slots_.resize(slots);
  }

  // The latest of a pair counts.
  void Set(uint32_t left, uint32_t right, Merge merge) {
    size_t i = Place(Key(left, right));
    while (slots_[i].key != kEmpty && slots_[i].key != Key(left, right)) {
      i = (i + 1) & (slots_.size() - 1);
    }
    slots_[i] = {Key(left, right), merge};
  }

  // Its rank is kNoRank if the two don't merge.
  Merge Find(uint32_t left, uint32_t right) const {
    const uint64_t key = Key(left, right);
    for (size_t i = Place(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return slots_[i].merge;
      if (slots_[i].key == kEmpty) return {kNoRank, 0};
    }
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge = {kNoRank, 0};
  };

  static uint64_t Key(uint32_t left, uint32_t right) {
    return static_cast<uint64_t>(left) << 32 | right;
  }
  size_t Place(uint64_t key) const {
    key *= 0x9e3779b97f4a7c15u;
    return (key ^ key >> 32) & (slots_.size() - 1);
  }

  std::vector<Slot> slots_;
};

}  // namespace tokenizer
}  // namespace capstan

#endif  // CAPSTAN_TEXT_TOKENIZER_MERGE_TABLE_H_
