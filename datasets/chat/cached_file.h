// SPDX-License-Identifier: Apache-2.0
//
// Cached files derived from a data file: in the folder .capstan next to it or,
// if that can't be written, in $XDG_CACHE_HOME/capstan (~/.cache/capstan), or
// else in a file without a name that ends with the process.
#ifndef CAPSTAN_DATASETS_CHAT_CACHED_FILE_H_
#define CAPSTAN_DATASETS_CHAT_CACHED_FILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/files.h"

namespace capstan::chat {

// A 64-bit hash of `bytes`, the same on every machine: CRC-64 and a finaliser.
// For file names and for choosing rows; not cryptographic.
uint64_t HashOf(absl::string_view bytes);

// What a cached file depends on, field by field.
class CacheKey {
 public:
  CacheKey& Add(absl::string_view field);
  CacheKey& Add(uint64_t field);
  // Adds the file's absolute path, size and modification time.
  absl::Status AddFile(const std::string& path);

  uint64_t hash() const { return HashOf(fields_); }

 private:
  std::string fields_;
};

// Takes a cached file's contents.
class CacheWriter {
 public:
  using Sink = std::function<absl::Status(absl::string_view)>;

  explicit CacheWriter(Sink sink) : sink_(std::move(sink)) {}

  absl::Status Write(absl::string_view bytes);
  // Writes what ends the file, by which a whole one is known.
  absl::Status Finish(uint64_t key);
  // The first error of the sink: the place's fault, not the contents'.
  const absl::Status& status() const { return status_; }

 private:
  const Sink sink_;
  absl::Status status_;
  uint64_t bytes_ = 0;
  uint64_t crc_ = 0;
};

struct CachedFile {
  std::shared_ptr<const MappedFile> file;
  absl::string_view contents;  // of it; aligned for any number
};

// `data_path`'s cached file with this key and extension. Its checksum is
// compared whenever it is opened, and check(contents) has the last word: others
// may be able to write where it is. One that is damaged, or not there, is made
// (with a note on standard error if it is damaged): make(writer) writes its
// contents, in another place if one is full or can't be written. Other
// processes that need it wait. Errors: those of `make`, or RESOURCE_EXHAUSTED
// and the like if there is no place.
absl::StatusOr<CachedFile> OpenCached(
    const std::string& data_path, uint64_t key, const std::string& extension,
    const std::function<absl::Status(absl::string_view)>& check,
    const std::function<absl::Status(CacheWriter*)>& make);

// The bytes of `size` values.
template <typename T>
absl::string_view BytesOf(const T* values, size_t size) {
  return {reinterpret_cast<const char*>(values), size * sizeof(T)};
}

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_CACHED_FILE_H_
