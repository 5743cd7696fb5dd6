// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_MAPPED_FILE_H_
#define CAPSTAN_BASE_MAPPED_FILE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

// A file in memory, read-only, for as long as the object lives. Pages come from
// the file as they are touched and go when memory is short.
class MappedFile {
 public:
  // Errors name the file: missing, a folder, empty, not readable.
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(
      const std::string& path);
  ~MappedFile();

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  absl::string_view bytes() const { return bytes_; }

 private:
  MappedFile(std::string path, absl::string_view bytes)
      : path_(std::move(path)), bytes_(bytes) {}

  const std::string path_;
  const absl::string_view bytes_;
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_MAPPED_FILE_H_
