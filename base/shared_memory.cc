// SPDX-License-Identifier: Apache-2.0
#include "base/shared_memory.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <random>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/limits.h"
#include "base/status.h"

namespace capstan {
namespace {

// At the beginning of the memory.
struct Header {
  // Random, so that a stale address isn't taken for one of other memory.
  uint64_t nonce;
  int64_t bytes;
};

uint64_t NewNonce() {
  std::random_device random;
  return (static_cast<uint64_t>(random()) << 32) | random();
}

}  // namespace

absl::Status SharedMemoryError(absl::string_view call) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "no shared memory: ", call, ": ", strerror(errno), LimitText(errno)));
}

absl::Status SharedMemory::Map() {
  void* const memory =
      mmap(nullptr, kHeaderBytes + bytes_, PROT_READ | PROT_WRITE,
           MAP_SHARED | (fd_ < 0 ? MAP_ANONYMOUS : 0), fd_, 0);
  if (memory == MAP_FAILED) return SharedMemoryError("mmap");
  memory_ = memory;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Create(
    int64_t bytes, bool opens) {
  const int fd = opens ? memfd_create("capstan", MFD_CLOEXEC) : -1;
  if (opens && fd < 0) return SharedMemoryError("memfd_create");
  auto shared = absl::WrapUnique(new SharedMemory(fd, bytes));
  if (opens && ftruncate(fd, kHeaderBytes + bytes) != 0) {
    return SharedMemoryError("ftruncate");
  }
  CAPSTAN_RETURN_IF_ERROR(shared->Map());
  const uint64_t nonce = NewNonce();
  new (shared->memory_) Header{nonce, bytes};
  if (opens) shared->address_ = absl::StrCat(getpid(), " ", fd, " ", nonce);
  return shared;
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Open(
    const std::string& address, int64_t bytes) {
  const std::vector<std::string> parts = absl::StrSplit(address, ' ');
  int pid = 0;
  int number = 0;
  uint64_t nonce = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &pid) ||
      !absl::SimpleAtoi(parts[1], &number) ||
      !absl::SimpleAtoi(parts[2], &nonce)) {
    return absl::InvalidArgumentError(
        absl::StrCat("no address of shared memory: '", address, "'"));
  }
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", number);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return SharedMemoryError(path);
  auto shared = absl::WrapUnique(new SharedMemory(fd, bytes));
  Header header = {};
  struct stat info;
  if (fstat(fd, &info) != 0) return SharedMemoryError(path);
  // Accessing a mapping beyond the file's end would raise SIGBUS.
  if (pread(fd, &header, sizeof(header), 0) != sizeof(header) ||
      header.nonce != nonce || header.bytes != bytes ||
      info.st_size < kHeaderBytes + bytes) {
    return absl::NotFoundError(
        absl::StrCat(path, " isn't the shared memory of ", bytes, " bytes"));
  }
  CAPSTAN_RETURN_IF_ERROR(shared->Map());
  shared->address_ = address;
  return shared;
}

SharedMemory::~SharedMemory() {
  CloseFile();
  if (memory_ != nullptr) munmap(memory_, kHeaderBytes + bytes_);
}

void SharedMemory::CloseFile() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

}  // namespace capstan
