// SPDX-License-Identifier: Apache-2.0
#include "base/digest.h"

#include <glog/logging.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/status.h"

namespace capstan {
namespace {

// A text of more bytes has the checksum of its pieces' checksums.
constexpr size_t kPieceBytes = size_t{16} << 20;

std::string Digest(absl::string_view bytes, bool forget) {
  std::string sums;
  for (size_t at = 0; at < bytes.size() || at == 0; at += kPieceBytes) {
    const absl::string_view piece = bytes.substr(at, kPieceBytes);
    absl::StrAppendFormat(&sums, "%08x", Crc32c(piece));
    if (forget) ForgetMapped(piece.data(), piece.size());
  }
  constexpr size_t kOfOne = 8;
  if (sums.size() > kOfOne) sums = absl::StrFormat("%08x", Crc32c(sums));
  return absl::StrFormat("%d bytes, crc32c %s", bytes.size(), sums);
}

}  // namespace

std::string DigestText(absl::string_view bytes) {
  return Digest(bytes, /*forget=*/false);
}

absl::StatusOr<std::string> DigestOfFile(const MappedFile& file) {
  const std::string digest = Digest(file.bytes(), /*forget=*/true);
  CAPSTAN_RETURN_IF_ERROR(file.Check());
  return digest;
}

std::string Sha256(absl::string_view bytes) {
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  // It fails only where OpenSSL was built without the algorithm.
  CHECK_EQ(EVP_Digest(bytes.data(), bytes.size(),
                      reinterpret_cast<unsigned char*>(&digest[0]), &size,
                      EVP_sha256(), nullptr),
           1);
  digest.resize(size);
  return digest;
}

std::string Sha256Text(absl::string_view bytes) {
  return absl::BytesToHexString(Sha256(bytes));
}

}  // namespace capstan
