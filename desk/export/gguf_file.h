// SPDX-License-Identifier: Apache-2.0
//
// GGUF files, version 3 (github.com/ggml-org/ggml, docs/gguf.md): named values,
// then tensors.
#ifndef CAPSTAN_DESK_EXPORT_GGUF_FILE_H_
#define CAPSTAN_DESK_EXPORT_GGUF_FILE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "desk/export/gguf_types.h"

namespace capstan {

using GgufValue = std::variant<uint32_t, float, bool, std::string,
                               std::vector<int32_t>, std::vector<float>,
                               std::vector<bool>, std::vector<std::string>>;
using GgufValues = std::vector<std::pair<std::string, GgufValue>>;

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::kF32;
  std::vector<int64_t> shape;  // outermost first, as in safetensors
  int64_t values() const;
  int64_t bytes() const { return GgufBytes(type, values()); }
};

// Writes a file that must not exist. Without a Close that returns OK it is
// removed.
class GgufWriter {
 public:
  static absl::StatusOr<std::unique_ptr<GgufWriter>> Create(
      const std::string& path, const GgufValues& values,
      const std::vector<GgufTensor>& tensors);
  ~GgufWriter();

  // Appends the next bytes, of the tensors in their order; a tensor may be
  // split over several calls, of which none may have bytes of two.
  absl::Status Append(absl::string_view bytes);
  // Flushes to disk. FAILED_PRECONDITION if bytes are missing.
  absl::Status Close();

 private:
  GgufWriter(std::string path, OutputFile file,
             const std::vector<GgufTensor>& tensors);

  const std::string path_;
  OutputFile file_;
  std::vector<int64_t> bytes_;  // of each tensor
  size_t tensor_ = 0;
  int64_t left_ = 0;  // bytes of the present tensor
  bool closed_ = false;
};

// A mapped file of GgufWriter's: other versions and types are errors, as is a
// file that ends early. Errors name the file.
class GgufReader {
 public:
  struct Entry {
    GgufTensor tensor;
    const char* data = nullptr;  // in mapped memory
  };

  static absl::StatusOr<std::unique_ptr<GgufReader>> Open(
      const std::string& path);

  const GgufValues& values() const { return values_; }
  const std::map<std::string, Entry>& tensors() const { return tensors_; }
  // MappedFile::Check.
  absl::Status Check() const { return file_->Check(); }

 private:
  GgufReader() = default;

  std::shared_ptr<const MappedFile> file_;
  GgufValues values_;
  std::map<std::string, Entry> tensors_;  // by name
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_EXPORT_GGUF_FILE_H_
