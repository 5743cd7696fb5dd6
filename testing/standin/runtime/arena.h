// SPDX-License-Identifier: Apache-2.0
//
// Address space that is mapped twice: as programs see it, and as works do.
#ifndef CAPSTAN_TESTING_STANDIN_RUNTIME_ARENA_H_
#define CAPSTAN_TESTING_STANDIN_RUNTIME_ARENA_H_

#include <cstdint>
#include <map>

namespace capstan::standin {

// Not thread-safe, but for Contains and View.
class Arena {
 public:
  // Reserves `reserved` bytes of address space, of which `limit` may be
  // allocated at a time; `protection`: of the pages that programs see.
  Arena(int64_t reserved, int64_t limit, int protection);

  // Null if the limit doesn't allow it. It begins on a page; freed
  // addresses come again as late as possible.
  void* Allocate(int64_t bytes);

  // Bytes of what was allocated there; -1: nothing was.
  int64_t Free(void* begin);

  // Addresses without memory; null: there are none left. And gives them back,
  // with nothing mapped there.
  void* Reserve(int64_t bytes);
  bool Unreserve(void* begin);
  // Counts whole pages of memory towards the limit, or, negative, no longer;
  // false: the limit doesn't allow it.
  bool Use(int64_t bytes);
  // Makes such memory accessible at reserved addresses, and gives it back to
  // the machine. What lies side by side is one allocation.
  bool Map(const void* begin, int64_t bytes);
  bool Unmap(const void* begin, int64_t bytes);

  // The allocation that p lies in; false: none.
  bool Find(const void* p, uintptr_t* begin, int64_t* bytes) const;

  bool Contains(const void* p) const {
    const auto at = reinterpret_cast<uintptr_t>(p);
    return at >= begin_ && at < begin_ + reserved_;
  }
  char* View(const void* p) const {
    return view_ + (reinterpret_cast<uintptr_t>(p) - begin_);
  }

  int64_t limit() const { return limit_; }
  int64_t used() const { return used_; }

 private:
  // Takes `size` bytes out of the free ones, not before `from`.
  bool Take(uint64_t from, uint64_t size, uint64_t* offset);
  void GiveBack(uint64_t offset, uint64_t size);

  int file_ = -1;
  uintptr_t begin_ = 0;
  char* view_ = nullptr;
  uint64_t reserved_ = 0;
  int64_t limit_ = 0;
  int64_t used_ = 0;
  uint64_t cursor_ = 0;                    // where the search begins
  std::map<uint64_t, uint64_t> free_;      // offset to bytes, in whole pages
  std::map<uint64_t, int64_t> allocated_;  // offset to bytes as asked for
  std::map<uint64_t, uint64_t> reserved_parts_, mapped_;  // offset to bytes
};

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_RUNTIME_ARENA_H_
