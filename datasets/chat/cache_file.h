// SPDX-License-Identifier: Apache-2.0
//
// Files that are made from a data file once and kept: in the folder .capstan
// beside it or, where that can't be written, in $XDG_CACHE_HOME/capstan
// (~/.cache/capstan).
#ifndef CAPSTAN_DATASETS_CHAT_CACHE_FILE_H_
#define CAPSTAN_DATASETS_CHAT_CACHE_FILE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/output_file.h"

namespace capstan {
namespace chat {

// 64 well-mixed bits of `bytes`, the same on every machine: CRC-64 and a
// finaliser. For names of files and for a choice of rows; not against forgers.
uint64_t HashOf(absl::string_view bytes);

// What a cached file depends on, field by field.
class CacheKey {
 public:
  CacheKey& Add(absl::string_view field);
  CacheKey& Add(uint64_t field);
  // The file's absolute path, its size and when it was last written.
  absl::Status AddFile(const std::string& path);

  uint64_t hash() const { return HashOf(fields_); }

 private:
  std::string fields_;
};

// The path of `data_path`'s cached file of this key and extension. Where there
// is none for which is_valid(path) holds, make(file) writes one, which lands
// whole; processes that ask for it meanwhile wait.
absl::StatusOr<std::string> CachedFile(
    const std::string& data_path, uint64_t key, const std::string& extension,
    const std::function<bool(const std::string&)>& is_valid,
    const std::function<absl::Status(HiddenFile*)>& make);

}  // namespace chat
}  // namespace capstan

#endif  // CAPSTAN_DATASETS_CHAT_CACHE_FILE_H_
