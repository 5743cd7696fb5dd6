// SPDX-License-Identifier: Apache-2.0
//
// Short texts that tell data from others, for users and for comparison:
// "1115394 bytes, crc32c 1a2b3c4d". Only Sha256 is cryptographic.
#ifndef CAPSTAN_BASE_DIGEST_H_
#define CAPSTAN_BASE_DIGEST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/files.h"

namespace capstan {

std::string DigestText(absl::string_view bytes);

template <typename T>
std::string DigestOfValues(const std::vector<T>& values) {
  return DigestText({reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(T)});
}

// Of a mapped file's bytes, at the speed of memory; afterwards its pages don't
// count as this process's memory. DATA_LOSS if it shrinks meanwhile.
absl::StatusOr<std::string> DigestOfFile(const MappedFile& file);

// The 32 bytes of the SHA-256 digest (FIPS 180-4), and as 64 hexadecimal
// digits.
std::string Sha256(absl::string_view bytes);
std::string Sha256Text(absl::string_view bytes);

}  // namespace capstan

#endif  // CAPSTAN_BASE_DIGEST_H_
