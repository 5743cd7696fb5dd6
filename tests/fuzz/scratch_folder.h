// SPDX-License-Identifier: Apache-2.0
//
// A folder for fuzz targets of readers that take paths.
#ifndef CAPSTAN_TESTS_FUZZ_SCRATCH_FOLDER_H_
#define CAPSTAN_TESTS_FUZZ_SCRATCH_FOLDER_H_

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/string_view.h"
#include "glog/logging.h"

namespace capstan {

// One of a process, in memory, removed at its end unless that is a crash.
class ScratchFolder {
 public:
  ScratchFolder() : path_("/dev/shm/capstan_fuzz_XXXXXX") {
    PCHECK(mkdtemp(&path_[0]) != nullptr);
  }
  ~ScratchFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }

  // Writes FOLDER/NAME, new or over the old one, and returns its path.
  std::string Write(const std::string& name, absl::string_view bytes) const {
    const std::string path = path_ + "/" + name;
    const int fd =
        open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    PCHECK(fd >= 0) << path;
    PCHECK(write(fd, bytes.data(), bytes.size()) ==
           static_cast<ssize_t>(bytes.size()));
    close(fd);
    return path;
  }

 private:
  std::string path_;
};

}  // namespace capstan

#endif  // CAPSTAN_TESTS_FUZZ_SCRATCH_FOLDER_H_
