// SPDX-License-Identifier: Apache-2.0
#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace capstan {

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(
    const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return absl::NotFoundError(
        absl::StrCat(path, " can't be opened: ", std::strerror(errno)));
  }
  struct stat info;
  absl::Status status;
  void* data = nullptr;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    status = absl::InvalidArgumentError(absl::StrCat(path, " is not a file"));
  } else if (info.st_size == 0) {
    status = absl::InvalidArgumentError(absl::StrCat(path, " is empty"));
  } else {
    data = mmap(nullptr, info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
      status = absl::InternalError(
          absl::StrCat(path, " can't be mapped: ", std::strerror(errno)));
    }
  }
  close(fd);
  if (!status.ok()) return status;
  return std::shared_ptr<const MappedFile>(new MappedFile(
      path, absl::string_view(static_cast<const char*>(data), info.st_size)));
}

MappedFile::~MappedFile() {
  munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

}  // namespace capstan
