// SPDX-License-Identifier: Apache-2.0
//
// What the writer and the reader of token files share.
#ifndef CAPSTAN_DATASETS_TEXT_TOKEN_FILE_FORMAT_H_
#define CAPSTAN_DATASETS_TEXT_TOKEN_FILE_FORMAT_H_

#include <cstdint>
#include <cstring>
#include <string>

#include "base/crc32c.h"

namespace capstan {
namespace text {

constexpr char kTokenFileMagic[] = "CAPTOKNS";
constexpr uint32_t kTokenFileVersion = 1;
constexpr size_t kHeaderBytes = 64;
constexpr size_t kTokenChunkBytes = 4 << 20;

// Ids below 2^16 take two bytes.
inline size_t TokenBytes(int64_t vocab_size) {
  return vocab_size <= 1 << 16 ? 2 : 4;
}

inline uint64_t RoundUp8(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

// Numbers are written as this machine, a little-endian one, holds them.
template <typename Number>
void AppendNumber(Number value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename Number>
Number NumberAt(const char* place) {
  Number value;
  std::memcpy(&value, place, sizeof(value));
  return value;
}

}  // namespace text
}  // namespace capstan

#endif  // CAPSTAN_DATASETS_TEXT_TOKEN_FILE_FORMAT_H_
