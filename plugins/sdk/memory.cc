// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>

namespace capstan {
namespace {

// The ends of a range that fill no huge page are cleared by memset: returning
// them would split a page.
constexpr uintptr_t kHugePage = uintptr_t{2} << 20;

thread_local MemoryCategory current_category = MemoryCategory::kOther;

}  // namespace

const char* MemoryCategoryName(MemoryCategory category) {
  static constexpr const char* kNames[kMemoryCategories] = {
      "other",   "parameters",  "gradients", "masters",  "optimizer_state",
      "buckets", "activations", "logits",    "workspace"};
  return kNames[static_cast<int>(category)];
}

MemoryScope::MemoryScope(MemoryCategory category) : before_(current_category) {
  current_category = category;
}

MemoryScope::~MemoryScope() { current_category = before_; }

MemoryCategory CurrentMemoryCategory() { return current_category; }

void ZeroFill(void* data, size_t bytes) {
  if (bytes == 0) return;  // `data` may be null then
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t end = begin + bytes;
  const uintptr_t whole_begin = (begin + kHugePage - 1) & ~(kHugePage - 1);
  const uintptr_t whole_end = end & ~(kHugePage - 1);
  if (whole_begin >= whole_end ||
      madvise(reinterpret_cast<void*>(whole_begin), whole_end - whole_begin,
              MADV_DONTNEED) != 0) {
    std::memset(data, 0, bytes);
    return;
  }
  std::memset(data, 0, whole_begin - begin);
  std::memset(reinterpret_cast<void*>(whole_end), 0, end - whole_end);
}

}  // namespace capstan
