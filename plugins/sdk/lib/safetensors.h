// SPDX-License-Identifier: Apache-2.0
//
// safetensors files and folders: an 8-byte little-endian header length, a JSON
// header, raw row-major data (github.com/huggingface/safetensors, README
// "Format").
#ifndef CAPSTAN_PLUGINS_SDK_LIB_SAFETENSORS_H_
#define CAPSTAN_PLUGINS_SDK_LIB_SAFETENSORS_H_

#include <c10/core/ScalarType.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

// A tensor in a mapped file.
struct TensorEntry {
  // Undefined if it isn't one of SafetensorsDtype's (F4, U16, ..): such a
  // tensor can't be read.
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape;
  int64_t numel = 0;
  const char* data = nullptr;  // in mapped memory; may be unaligned
  int64_t bytes = 0;
  std::string file;  // for messages
};

// One .safetensors file, or a Hugging Face folder: model.safetensors, or
// model.safetensors.index.json with its shards. Files are mapped, not read.
// Open validates all headers: malformed or truncated files give an error that
// names file and tensor, and no entry extends beyond its file. Thread-safe.
class SafetensorsReader {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsReader>> Open(
      const std::string& path);
  virtual ~SafetensorsReader();

  // By name.
  virtual const std::map<std::string, TensorEntry>& tensors() const = 0;
  // __metadata__ of the (first) file.
  virtual const std::map<std::string, std::string>& metadata() const = 0;

  // Converts elements [begin, begin + count) of an F32, F16, BF16 or F64
  // tensor to float. NOT_FOUND, OUT_OF_RANGE or INVALID_ARGUMENT otherwise.
  // Afterwards the file's pages don't count as this process's memory.
  virtual absl::Status ReadFloats(const std::string& name, int64_t begin,
                                  int64_t count, float* out) const = 0;

  // Tells the kernel that entries' data will be read again and again, not only
  // once and in order.
  virtual void ExpectRepeatedReads() const = 0;

  // The dtype of a tensor in `tensors()` as the file names it, for messages.
  virtual std::string DtypeName(const std::string& name) const;
};

// Writes one file to `path` (which must not exist): declare all tensors, append
// their bytes in the same order, then Close. Without a successful Close the
// file is removed. Errors name the file ("PATH can't be written: No space left
// on device").
class SafetensorsWriter {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path);
  virtual ~SafetensorsWriter();

  virtual void Declare(const std::string& name, c10::ScalarType dtype,
                       const std::vector<int64_t>& shape) = 0;
  virtual void SetMetadata(const std::string& key,
                           const std::string& value) = 0;
  // Appends the next bytes; a tensor may be split over several calls.
  virtual absl::Status Append(const void* data, int64_t bytes) = 0;
  // Flushes to disk (fsync). FAILED_PRECONDITION if bytes are missing.
  virtual absl::Status Close() = 0;
};

// The dtype's name in the format ("F32"), and the inverse.
absl::StatusOr<std::string> SafetensorsDtypeName(c10::ScalarType dtype);
absl::StatusOr<c10::ScalarType> SafetensorsDtype(absl::string_view name);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_LIB_SAFETENSORS_H_
