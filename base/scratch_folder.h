// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_SCRATCH_FOLDER_H_
#define CAPSTAN_BASE_SCRATCH_FOLDER_H_

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "base/files.h"

namespace capstan {

// A new folder among the system's temporary ones, removed with all that is in
// it.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::error_code error;
    const std::filesystem::path parent =
        std::filesystem::temp_directory_path(error);
    if (error) {
      status_ = WriteError("$TMPDIR", error.value());
      return;
    }
    path_ = (parent / "capstan-XXXXXX").string();
    if (mkdtemp(&path_[0]) != nullptr) return;
    status_ = WriteError(path_, errno);
    path_.clear();
  }
  ~ScratchFolder() {
    if (path_.empty()) return;
    try {
      RemoveTree(path_).IgnoreError();
    } catch (const std::bad_alloc&) {  // stays behind
    }
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }
  const absl::Status& status() const { return status_; }

 private:
  std::string path_;
  absl::Status status_;
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_SCRATCH_FOLDER_H_
