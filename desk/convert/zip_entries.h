// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_CONVERT_ZIP_ENTRIES_H_
#define CAPSTAN_DESK_CONVERT_ZIP_ENTRIES_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

// Whether bytes begin like a zip archive with files.
bool LooksLikeZip(absl::string_view bytes);

// A file of a zip archive.
struct ZipEntry {
  absl::string_view bytes;
  uint32_t crc32 = 0;  // 0: not recorded, as by torch.save without checksums
};

// INVALID_ARGUMENT if the bytes aren't those whose checksum is recorded. Reads
// them all. `name` is for the error.
absl::Status CheckZipEntry(absl::string_view name, const ZipEntry& entry);

// The files of a zip archive by name, as views of `bytes`, the whole archive.
// Without those that are compressed or encrypted, which torch.save's never are.
// Their checksums aren't compared. Each must have bytes of its own (PKWARE's
// APPNOTE 6.3, sections 4.3 and 4.5.3, with 64-bit sizes). INVALID_ARGUMENT
// says what is wrong with the archive.
absl::StatusOr<std::map<std::string, ZipEntry>> ZipEntries(
    absl::string_view bytes);

}  // namespace capstan

#endif  // CAPSTAN_DESK_CONVERT_ZIP_ENTRIES_H_
