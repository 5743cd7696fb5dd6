// SPDX-License-Identifier: Apache-2.0
#include "trainer/memory/zero_fill.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>

namespace capstan {
namespace {

// Parts of a huge page are cleared by hand: giving them back would split it.
constexpr uintptr_t kHugePage = uintptr_t{2} << 20;

}  // namespace

void ZeroFill(void* data, size_t bytes) {
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
