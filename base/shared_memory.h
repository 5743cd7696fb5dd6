// SPDX-License-Identifier: Apache-2.0
//
// Memory of one process that others of the same host map, by an address that
// they are told. It has no name in any file system, and is freed with the last
// process that maps it.
#ifndef CAPSTAN_BASE_SHARED_MEMORY_H_
#define CAPSTAN_BASE_SHARED_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

// RESOURCE_EXHAUSTED, of `call` and errno.
absl::Status SharedMemoryError(absl::string_view call);

// A random number, by which the memory at an address is known to be the one
// that was meant.
uint64_t NewMemoryNonce();

// Of this process's file `fd`, which must stay open: "PID FD NONCE".
std::string SharedMemoryAddress(int fd, uint64_t nonce);

struct OpenedMemory {
  int fd = -1;  // the caller's to close
  std::string path;
  uint64_t nonce = 0;  // of the address: what is there may be other memory
};

// The file of another process's address. INVALID_ARGUMENT if it isn't one,
// RESOURCE_EXHAUSTED if the file can't be opened.
absl::StatusOr<OpenedMemory> OpenSharedMemory(const std::string& address);

}  // namespace capstan

#endif  // CAPSTAN_BASE_SHARED_MEMORY_H_
