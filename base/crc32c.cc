// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace capstan {

uint32_t Crc32c(absl::string_view bytes) {
  uint32_t state = ~uint32_t{0};
  while (!bytes.empty()) {
    // isa-l counts in int.
    const size_t n = std::min<size_t>(bytes.size(), 1 << 30);
    state = crc32_iscsi(
        reinterpret_cast<unsigned char*>(const_cast<char*>(bytes.data())),
        static_cast<int>(n), state);
    bytes.remove_prefix(n);
  }
  return ~state;
}

}  // namespace capstan
