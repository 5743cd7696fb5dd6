// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_CRC32C_H_
#define CAPSTAN_BASE_CRC32C_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace capstan {

// CRC-32C (Castagnoli, as in RFC 3720 appendix B.4).
uint32_t Crc32c(absl::string_view bytes);

}  // namespace capstan

#endif  // CAPSTAN_BASE_CRC32C_H_
