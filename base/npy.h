// SPDX-License-Identifier: Apache-2.0
//
// numpy's .npy format, versions 1.0 to 3.0 (numpy.lib.format): little-endian
// numbers in C order. Anything else is rejected with an error that names it.
#ifndef CAPSTAN_BASE_NPY_H_
#define CAPSTAN_BASE_NPY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/files.h"

namespace capstan {

enum class NpyType {
  kBool,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kFloat16,
  kFloat32,
  kFloat64,
};

// numpy's name: "int64".
const char* NpyTypeName(NpyType type);

// The NpyType of elements stored as T.
template <typename T>
constexpr NpyType NpyTypeOf() {
  if constexpr (std::is_same_v<T, bool>) return NpyType::kBool;
  if constexpr (std::is_same_v<T, int32_t>) return NpyType::kInt32;
  if constexpr (std::is_same_v<T, int64_t>) return NpyType::kInt64;
  if constexpr (std::is_same_v<T, uint8_t>) return NpyType::kUint8;
  if constexpr (std::is_same_v<T, float>) return NpyType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return NpyType::kFloat64;
}

struct NpyHeader {
  NpyType type = NpyType::kFloat64;
  std::vector<int64_t> shape;  // empty: a scalar
  size_t data_begin = 0;       // offset in the file, in bytes

  int64_t elements() const;
  std::string ShapeText() const;  // "[490, 4096]"
};

// Parses the header of `file`, the whole file, and checks that the data has
// exactly the shape's size. Errors don't name the file: "is truncated: ..".
absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view file);

// A memory-mapped array file. Thread-safe.
class NpyArray {
 public:
  // Errors name the file.
  static absl::StatusOr<std::shared_ptr<const NpyArray>> Open(
      const std::string& path);

  const std::string& path() const { return file_->path(); }
  NpyType type() const { return header_.type; }
  const std::vector<int64_t>& shape() const { return header_.shape; }
  std::string ShapeText() const { return header_.ShapeText(); }

  // Copies elements [begin, begin + n) in C order. They must exist, and T must
  // be the array's type.
  template <typename T>
  void Read(int64_t begin, int64_t n, T* out) const {
    CheckRead(NpyTypeOf<T>(), begin, n);
    if (n == 0) return;  // `out` may be null
    std::memcpy(out,
                file_->bytes().data() + header_.data_begin + begin * sizeof(T),
                n * sizeof(T));
  }

 private:
  NpyArray(std::shared_ptr<const MappedFile> file, NpyHeader header);
  void CheckRead(NpyType type, int64_t begin, int64_t n) const;

  const std::shared_ptr<const MappedFile> file_;
  const NpyHeader header_;
};

// Writes an array incrementally. The file appears when Close returns OK; until
// then it is a hidden sibling, which the destructor removes.
class NpyWriter {
 public:
  static absl::StatusOr<std::unique_ptr<NpyWriter>> Create(
      const std::string& path, NpyType type, const std::vector<int64_t>& shape);

  // Appends elements in C order; T must be the array's type.
  template <typename T>
  absl::Status Append(absl::Span<const T> elements) {
    return AppendBytes(
        NpyTypeOf<T>(),
        absl::string_view(reinterpret_cast<const char*>(elements.data()),
                          elements.size() * sizeof(T)));
  }

  // Fails unless exactly the shape's number of elements was written.
  absl::Status Close();

 private:
  NpyWriter(std::unique_ptr<HiddenFile> file, NpyType type, int64_t elements);
  absl::Status AppendBytes(NpyType type, absl::string_view bytes);

  const std::unique_ptr<HiddenFile> file_;
  const NpyType type_;
  const int64_t elements_;
  int64_t written_ = 0;  // of elements
};

// Writes a whole array: WriteNpy<double>("returns.npy", {8, 500}, values).
template <typename T>
absl::Status WriteNpy(const std::string& path,
                      const std::vector<int64_t>& shape,
                      absl::Span<const T> elements) {
  absl::StatusOr<std::unique_ptr<NpyWriter>> writer =
      NpyWriter::Create(path, NpyTypeOf<T>(), shape);
  if (!writer.ok()) return writer.status();
  const absl::Status status = (*writer)->Append(elements);
  return status.ok() ? (*writer)->Close() : status;
}

}  // namespace capstan

#endif  // CAPSTAN_BASE_NPY_H_
