// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_PACKING_H_
#define CAPSTAN_DATASETS_CHAT_PACKING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/output_file.h"

namespace capstan::chat {

// Pack i is items[begins[i]] to items[begins[i + 1]], exclusive.
struct Packs {
  std::vector<uint64_t> begins = {0};
  std::vector<uint32_t> items;
};

// Best-fit decreasing (Johnson, "Near-optimal bin packing algorithms", 1973):
// from the longest item on, each goes where it leaves the least room. Item i
// has lengths[i], from 1 to capacity; no item is cut. Packs are sorted by their
// first items, items in a pack by index. O(n log capacity).
Packs PackBestFit(absl::Span<const uint32_t> lengths, uint32_t capacity);

// Decompress the file `from`, with all its members or frames, into `to`. Errors
// name the file: corrupt, truncated, empty, disk full.
absl::Status UnpackGzip(const std::string& from, HiddenFile* to);
absl::Status UnpackZstd(const std::string& from, HiddenFile* to);

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_PACKING_H_
