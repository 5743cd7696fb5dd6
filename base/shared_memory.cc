// SPDX-License-Identifier: Apache-2.0
#include "base/shared_memory.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/limits.h"

namespace capstan {

absl::Status SharedMemoryError(absl::string_view call) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "no shared memory: ", call, ": ", strerror(errno), LimitText(errno)));
}

uint64_t NewMemoryNonce() {
  std::random_device random;
  return (static_cast<uint64_t>(random()) << 32) | random();
}

std::string SharedMemoryAddress(int fd, uint64_t nonce) {
  return absl::StrCat(getpid(), " ", fd, " ", nonce);
}

absl::StatusOr<OpenedMemory> OpenSharedMemory(const std::string& address) {
  const std::vector<std::string> parts = absl::StrSplit(address, ' ');
  int pid = 0;
  int number = 0;
  OpenedMemory memory;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &pid) ||
      !absl::SimpleAtoi(parts[1], &number) ||
      !absl::SimpleAtoi(parts[2], &memory.nonce)) {
    return absl::InvalidArgumentError(
        absl::StrCat("no address of shared memory: '", address, "'"));
  }
  memory.path = absl::StrCat("/proc/", pid, "/fd/", number);
  memory.fd = open(memory.path.c_str(), O_RDWR | O_CLOEXEC);
  if (memory.fd < 0) return SharedMemoryError(memory.path);
  return memory;
}

}  // namespace capstan
