// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_MEMORY_BLOCK_CACHE_H_
#define CAPSTAN_TRAINER_MEMORY_BLOCK_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>

namespace capstan {

// Large blocks of memory straight from the kernel, kept for the next request of
// their size: a step asks for the same sizes again and again, and fresh pages
// must be cleared. A heap would keep them, too, but cuts them up for other
// sizes, until the process holds far more than its tensors ever did.
//
// What is kept is bounded: in use and kept together are never more than
// Slack above what has been in use at one time. Before that would be
// exceeded, the blocks that have lain unused longest go back to the kernel.
//
// Thread-safe.
class BlockCache {
 public:
  // So much more than was ever in use may be held: a sixteenth of it, but at
  // least kLeastSlack (a small model's speed is worth more than its memory).
  static int64_t Slack(int64_t most_in_use);
  static constexpr int64_t kLeastSlack = int64_t{64} << 20;

  // At least `bytes` (> 0) bytes, aligned to a page, of any value; null if the
  // kernel has none.
  void* Allocate(size_t bytes);
  // A block of Allocate(bytes).
  void Free(void* block, size_t bytes);

  int64_t in_use() const;
  int64_t kept() const;

 private:
  struct Kept {
    void* block;
    int64_t bytes;
  };
  using Age = std::list<Kept>;  // oldest first

  void* Take(int64_t bytes);
  // Gives kept blocks back until `more` bytes fit under the bound.
  void MakeRoom(int64_t more);
  // Gives kept blocks back, the oldest first, until at most `most` bytes are
  // left.
  void GiveBack(int64_t most);

  mutable std::mutex mutex_;
  int64_t in_use_ = 0;
  int64_t most_in_use_ = 0;
  int64_t kept_ = 0;
  Age by_age_;
  std::multimap<int64_t, Age::iterator> by_size_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_MEMORY_BLOCK_CACHE_H_
