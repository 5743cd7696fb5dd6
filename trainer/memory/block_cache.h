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
// What is kept is bounded: in use and kept together are never much more
// (kSlack) than what has been in use at one time. Before that would be
// exceeded, the blocks that have lain unused longest go back to the kernel.
//
// Thread-safe.
class BlockCache {
 public:
  // One sixteenth of the most that was ever in use.
  static constexpr int64_t kSlack = 16;

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

  mutable std::mutex mutex_;
  int64_t in_use_ = 0;
  int64_t most_in_use_ = 0;
  int64_t kept_ = 0;
  Age by_age_;
  std::multimap<int64_t, Age::iterator> by_size_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_MEMORY_BLOCK_CACHE_H_
