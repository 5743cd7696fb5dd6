// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_ELF_SECTION_H_
#define CAPSTAN_BASE_ELF_SECTION_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace capstan {

// Reads a section of a shared library without loading it, which may end the
// process if the library isn't whole; nullopt if it has none of that name, or a
// longer one than 4 MiB. FAILED_PRECONDITION, "it is ..", unless `path` is a
// regular 64-bit ELF file that has all of its sections.
absl::StatusOr<absl::optional<std::string>> ReadElfSection(
    const std::string& path, absl::string_view name);

// The name that a shared library has for itself; "" if it has none. Errors are
// ReadElfSection's.
absl::StatusOr<std::string> ReadElfSoname(const std::string& path);

}  // namespace capstan

#endif  // CAPSTAN_BASE_ELF_SECTION_H_
