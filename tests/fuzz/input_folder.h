// SPDX-License-Identifier: Apache-2.0
//
// A folder for fuzz targets of readers that take paths.
#ifndef CAPSTAN_TESTS_FUZZ_INPUT_FOLDER_H_
#define CAPSTAN_TESTS_FUZZ_INPUT_FOLDER_H_

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "absl/strings/string_view.h"
#include "base/scratch_folder.h"
#include "glog/logging.h"

namespace capstan {

// One of a process, removed at its end unless that is a crash. run.sh has it in
// memory.
class InputFolder : public ScratchFolder {
 public:
  InputFolder() { CHECK(status().ok()) << status(); }

  // Writes FOLDER/NAME, new or over the old one, and returns its path. Unlike
  // WriteWholeFile it doesn't wait for the disk.
  std::string Write(const std::string& name, absl::string_view bytes) const {
    const std::string file = path() + "/" + name;
    const int fd =
        open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    PCHECK(fd >= 0) << file;
    PCHECK(write(fd, bytes.data(), bytes.size()) ==
           static_cast<ssize_t>(bytes.size()));
    close(fd);
    return file;
  }
};

}  // namespace capstan

#endif  // CAPSTAN_TESTS_FUZZ_INPUT_FOLDER_H_
