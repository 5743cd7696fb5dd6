// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_OPEN_TO_READ_H_
#define CAPSTAN_BASE_OPEN_TO_READ_H_

#include <sys/stat.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

// Opens `path` for reading, with O_CLOEXEC, and stats it; the caller closes the
// descriptor. Never waits: a named pipe, whose open would wait for a writer, is
// an error; a pipe of the shell's (/dev/stdin, <(..)) is read as ever. An error
// begins with `path` and `failed`: " can't be opened".
absl::StatusOr<int> OpenToRead(const std::string& path,
                               absl::string_view failed, struct stat* info);

}  // namespace capstan

#endif  // CAPSTAN_BASE_OPEN_TO_READ_H_
