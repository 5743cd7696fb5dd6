// SPDX-License-Identifier: Apache-2.0
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files.h"
#include "base/status.h"
#include "plugins/sdk/lib/safetensors.h"
#include "plugins/sdk/lib/safetensors_header.h"

namespace capstan {
namespace {

constexpr MapOptions kMapping = {/*in_order=*/true, /*may_be_empty=*/true};

// Vectorised, which the build's usual optimisation level doesn't do.
template <typename T>
__attribute__((optimize("O3"))) void ConvertToFloat(const char* from,
                                                    int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    out[i] = static_cast<float>(value);
  }
}

class Reader final : public SafetensorsReader {
 public:
  // Adds the tensors of `path` that `wanted` names; all if it is null.
  absl::Status AddFile(const std::string& path,
                       const std::vector<std::string>* wanted) {
    CAPSTAN_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path, kMapping));
    absl::StatusOr<SafetensorsHeader> header =
        ParseSafetensorsHeader(file->bytes());
    if (!header.ok()) return Annotate(header.status(), path);
    for (auto& [name, entry] : header->tensors) entry.file = path;
    if (files_.empty()) metadata_ = std::move(header->metadata);
    if (wanted == nullptr) {
      tensors_ = std::move(header->tensors);
    } else {
      for (const std::string& name : *wanted) {
        const auto found = header->tensors.find(name);
        if (found == header->tensors.end()) {
          return absl::InvalidArgumentError(
              absl::StrCat(path, ": lacks tensor '", name,
                           "', which the index places in it"));
        }
        tensors_[name] = std::move(found->second);
      }
    }
    files_.push_back(std::move(file));
    return absl::OkStatus();
  }

  const std::map<std::string, TensorEntry>& tensors() const override {
    return tensors_;
  }
  const std::map<std::string, std::string>& metadata() const override {
    return metadata_;
  }

  absl::Status ReadFloats(const std::string& name, int64_t begin, int64_t count,
                          float* out) const override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      return absl::NotFoundError(absl::StrCat("no tensor '", name, "'"));
    }
    const TensorEntry& entry = found->second;
    if (begin < 0 || count < 0 || begin > entry.numel ||
        count > entry.numel - begin) {
      return absl::OutOfRangeError(absl::StrFormat(
          "%s: tensor '%s' has %d elements; %d from element %d were asked for",
          entry.file, name, entry.numel, count, begin));
    }
    switch (entry.dtype) {
      case c10::ScalarType::Float:
        // An empty `out` may be null.
        if (count > 0) std::memcpy(out, entry.data + 4 * begin, 4 * count);
        return absl::OkStatus();
      case c10::ScalarType::BFloat16:
        ConvertToFloat<c10::BFloat16>(entry.data + 2 * begin, count, out);
        return absl::OkStatus();
      case c10::ScalarType::Half:
        ConvertToFloat<c10::Half>(entry.data + 2 * begin, count, out);
        return absl::OkStatus();
      case c10::ScalarType::Double:
        ConvertToFloat<double>(entry.data + 8 * begin, count, out);
        return absl::OkStatus();
      default:
        return absl::InvalidArgumentError(absl::StrCat(
            entry.file, ": tensor '", name, "' is ",
            SafetensorsDtypeName(entry.dtype).value_or("of another type"),
            "; want F32, F16, BF16 or F64"));
    }
  }

 private:
  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::map<std::string, TensorEntry> tensors_;
  std::map<std::string, std::string> metadata_;
};

absl::Status OpenSharded(const std::string& folder, const std::string& index,
                         Reader* reader) {
  CAPSTAN_ASSIGN_OR_RETURN(const auto index_file,
                           MappedFile::Open(index, kMapping));
  const auto weight_map = ParseSafetensorsIndex(index_file->bytes());
  if (!weight_map.ok()) return Annotate(weight_map.status(), index);
  std::map<std::string, std::vector<std::string>> by_shard;
  for (const auto& [name, shard] : *weight_map) by_shard[shard].push_back(name);
  for (const auto& [shard, names] : by_shard) {
    const absl::Status status = reader->AddFile(folder + "/" + shard, &names);
    if (absl::IsNotFound(status)) {
      return absl::NotFoundError(absl::StrCat(
          folder, "/", shard, " is missing; ", index, " names it"));
    }
    CAPSTAN_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

}  // namespace

SafetensorsReader::~SafetensorsReader() = default;

absl::StatusOr<std::unique_ptr<SafetensorsReader>> SafetensorsReader::Open(
    const std::string& path) {
  auto reader = std::make_unique<Reader>();
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  if (!S_ISDIR(info.st_mode)) {
    CAPSTAN_RETURN_IF_ERROR(reader->AddFile(path, nullptr));
    return reader;
  }
  const std::string single = path + "/model.safetensors";
  const std::string index = path + "/model.safetensors.index.json";
  if (stat(single.c_str(), &info) == 0) {
    CAPSTAN_RETURN_IF_ERROR(reader->AddFile(single, nullptr));
  } else if (stat(index.c_str(), &info) == 0) {
    CAPSTAN_RETURN_IF_ERROR(OpenSharded(path, index, reader.get()));
  } else {
    return absl::NotFoundError(
        absl::StrCat(path,
                     " has neither model.safetensors nor "
                     "model.safetensors.index.json"));
  }
  return reader;
}

}  // namespace capstan
