// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_HIDDEN_FILE_H_
#define CAPSTAN_BASE_HIDDEN_FILE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

// A file that appears under its name when Close has returned OK; before that it
// is hidden beside it, and goes with this. Errors name the file. One thread.
class HiddenFile {
 public:
  static absl::StatusOr<std::unique_ptr<HiddenFile>> Create(
      const std::string& path);
  ~HiddenFile();
  HiddenFile(const HiddenFile&) = delete;
  HiddenFile& operator=(const HiddenFile&) = delete;

  // Behind what has been written last.
  absl::Status Write(absl::string_view bytes);
  // The next bytes replace the file's first ones.
  absl::Status Rewind();
  // Once, after all bytes.
  absl::Status Close();

  const std::string& path() const { return path_; }

 private:
  HiddenFile(const std::string& path, std::string hidden, int fd);

  const std::string path_;
  const std::string hidden_;
  int fd_;  // -1: closed
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_HIDDEN_FILE_H_
