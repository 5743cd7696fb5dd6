// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_UNPACK_H_
#define CAPSTAN_DATASETS_CHAT_UNPACK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::chat {

enum class Packed { kNot, kGzip, kZstd };

// By the first bytes of a file.
Packed PackedAs(absl::string_view bytes);

// Takes a packed file's extension (".gz", ".zstd", ..) off `name`, which is in
// lower case; kNot: it has none.
Packed ConsumePackedExtension(absl::string_view* name);

// A file's bytes from its beginning to its end, unpacked. One thread.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  // Fills `out` with up to `most` bytes; returns how many, 0 at the end, when
  // each byte of the file has been read as what it is. Errors name the file:
  // corrupt, truncated, empty, bytes that are no part of a member.
  virtual absl::StatusOr<size_t> Read(char* out, size_t most) = 0;
  // Of those that were read to their ends: gzip's members, zstd's frames.
  virtual uint64_t members() const { return 0; }
  // The bytes of the file that have been read so far.
  virtual uint64_t consumed() const = 0;
};

// All members or frames of a file one after the other.
absl::StatusOr<std::unique_ptr<ByteStream>> OpenBytes(const std::string& path,
                                                      Packed packed);

// What a file of so many bytes may become. Texts shrink to a third or a tenth,
// rows that are much alike to a hundredth; a file of zeros to a thousandth.
uint64_t MostUnpacked(uint64_t packed);

// `path` becomes more than `most` bytes.
absl::Status TooLarge(const std::string& path, uint64_t most);

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_UNPACK_H_
