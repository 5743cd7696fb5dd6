// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_SHARED_MEMORY_H_
#define CAPSTAN_BASE_SHARED_MEMORY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

// RESOURCE_EXHAUSTED, of `call` and errno.
absl::Status SharedMemoryError(absl::string_view call);

// Memory of one process that others of the same host map, by an address that
// they are told. It has no name in any file system, so the kernel frees it with
// the last process that maps it, however that ends.
class SharedMemory {
 public:
  // data() lies so far behind the beginning of the mapping, a page.
  static constexpr int64_t kHeaderBytes = 128;

  // Creates `bytes` bytes of zeros. Without `opens`, nobody can open them, and
  // they need no file, whose size may be limited.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(
      int64_t bytes, bool opens = true);
  // Maps the memory of another process by its address(). INVALID_ARGUMENT if
  // that isn't an address, RESOURCE_EXHAUSTED if it can't be opened, NOT_FOUND
  // if other memory is there, or not of `bytes` bytes.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Open(
      const std::string& address, int64_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // At most 60 characters. Valid until CloseFile, which keeps the mapping.
  const std::string& address() const { return address_; }
  void CloseFile();

  char* data() const { return static_cast<char*>(memory_) + kHeaderBytes; }

 private:
  SharedMemory(int fd, int64_t bytes) : fd_(fd), bytes_(bytes) {}
  absl::Status Map();

  std::string address_;
  int fd_;  // -1: closed, or none
  const int64_t bytes_;
  void* memory_ = nullptr;
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_SHARED_MEMORY_H_
