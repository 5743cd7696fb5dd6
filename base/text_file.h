// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_TEXT_FILE_H_
#define CAPSTAN_BASE_TEXT_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace capstan {

// A small file, whole. Errors are errno's, with the path.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);
absl::Status WriteTextFile(const std::string& path, const std::string& text);

}  // namespace capstan

#endif  // CAPSTAN_BASE_TEXT_FILE_H_
