// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files.h"
#include "base/status.h"
#include "plugins/sdk/lib/safetensors.h"

namespace capstan {
namespace {

using Json = nlohmann::json;

// Small tensors are written together, large ones bypass the buffer.
constexpr size_t kBufferBytes = 1 << 20;

struct DtypeName {
  const char* name;
  c10::ScalarType dtype;
};

constexpr DtypeName kDtypes[] = {
    {"F32", c10::ScalarType::Float},
    {"BF16", c10::ScalarType::BFloat16},
    {"F16", c10::ScalarType::Half},
    {"F64", c10::ScalarType::Double},
    {"I64", c10::ScalarType::Long},
    {"I32", c10::ScalarType::Int},
    {"I16", c10::ScalarType::Short},
    {"I8", c10::ScalarType::Char},
    {"U64", c10::ScalarType::UInt64},
    {"U32", c10::ScalarType::UInt32},
    {"U16", c10::ScalarType::UInt16},
    {"U8", c10::ScalarType::Byte},
    {"BOOL", c10::ScalarType::Bool},
    {"F8_E4M3", c10::ScalarType::Float8_e4m3fn},
    {"F8_E5M2", c10::ScalarType::Float8_e5m2},
};

class Writer final : public SafetensorsWriter {
 public:
  Writer(std::string path, OutputFile file)
      : path_(std::move(path)), file_(std::move(file)) {
    metadata_["format"] = "pt";  // some readers insist on it
  }

  ~Writer() override {
    if (!closed_) unlink(path_.c_str());
  }

  void Declare(const std::string& name, c10::ScalarType dtype,
               const std::vector<int64_t>& shape) override {
    if (header_written_) {
      status_.Update(absl::FailedPreconditionError(absl::StrCat(
          path_, ": tensor '", name, "' was declared after the first Append")));
      return;
    }
    const absl::StatusOr<std::string> dtype_name = SafetensorsDtypeName(dtype);
    if (!dtype_name.ok()) {
      status_.Update(Annotate(dtype_name.status(),
                              absl::StrCat(path_, ": tensor '", name, "'")));
      return;
    }
    int64_t bytes = static_cast<int64_t>(c10::elementSize(dtype));
    bool bad = name == "__metadata__" || !names_.insert(name).second;
    for (int64_t d : shape) {
      bad |= d < 0 || __builtin_mul_overflow(bytes, d, &bytes);
    }
    int64_t end = 0;
    bad |= __builtin_add_overflow(declared_, bytes, &end);
    if (bad) {
      status_.Update(absl::InvalidArgumentError(
          absl::StrCat(path_, ": tensor '", name,
                       "' has an impossible shape or a name in use")));
      return;
    }
    // In order of declaration, which is the order of the data.
    absl::StrAppend(&tensors_json_, ",", Quote(name), ":{\"dtype\":\"",
                    *dtype_name, "\",\"shape\":", Json(shape).dump(),
                    ",\"data_offsets\":[", declared_, ",", end, "]}");
    declared_ = end;
  }

  void SetMetadata(const std::string& key, const std::string& value) override {
    metadata_[key] = value;
  }

  absl::Status Append(const void* data, int64_t bytes) override {
    CAPSTAN_RETURN_IF_ERROR(WriteHeader());
    if (bytes < 0 || bytes > declared_ - appended_) {
      return Fail(absl::FailedPreconditionError(
          absl::StrFormat("%s: %d bytes more than the tensors declared have "
                          "room for",
                          path_, bytes - (declared_ - appended_))));
    }
    appended_ += bytes;
    return Write(static_cast<const char*>(data), bytes);
  }

  absl::Status Close() override {
    CAPSTAN_RETURN_IF_ERROR(WriteHeader());
    if (appended_ != declared_) {
      return Fail(absl::FailedPreconditionError(
          absl::StrFormat("%s: %d of the %d bytes declared were appended",
                          path_, appended_, declared_)));
    }
    CAPSTAN_RETURN_IF_ERROR(Flush());
    CAPSTAN_RETURN_IF_ERROR(Fail(file_.Close()));
    closed_ = true;
    return absl::OkStatus();
  }

 private:
  // Keeps the first error: all later calls return it.
  absl::Status Fail(const absl::Status& status) {
    status_.Update(status);
    return status_;
  }

  // JSON can't represent invalid UTF-8.
  std::string Quote(const std::string& text) {
    try {
      return Json(text).dump();
    } catch (const Json::exception&) {
      status_.Update(
          absl::InvalidArgumentError(path_ + ": a name isn't UTF-8"));
      return "\"\"";
    }
  }

  absl::Status WriteHeader() {
    if (!status_.ok() || header_written_) return status_;
    if (closed_) {
      return Fail(absl::FailedPreconditionError(path_ + ": is closed"));
    }
    std::string json = "{\"__metadata__\":{";
    const char* separator = "";
    for (const auto& [key, value] : metadata_) {
      absl::StrAppend(&json, separator, Quote(key), ":", Quote(value));
      separator = ",";
    }
    CAPSTAN_RETURN_IF_ERROR(status_);
    absl::StrAppend(&json, "}", tensors_json_, "}");
    json.resize((json.size() + 7) / 8 * 8, ' ');  // aligns the data
    std::string length(8, '\0');
    for (int i = 0; i < 8; ++i) {
      length[i] = static_cast<char>(json.size() >> (8 * i));
    }
    header_written_ = true;
    CAPSTAN_RETURN_IF_ERROR(Write(length.data(), length.size()));
    return Write(json.data(), json.size());
  }

  absl::Status Write(const char* data, size_t bytes) {
    if (buffer_.size() + bytes > kBufferBytes) CAPSTAN_RETURN_IF_ERROR(Flush());
    if (bytes >= kBufferBytes) return WriteThrough(data, bytes);
    buffer_.append(data, bytes);
    return status_;
  }

  absl::Status Flush() {
    CAPSTAN_RETURN_IF_ERROR(WriteThrough(buffer_.data(), buffer_.size()));
    buffer_.clear();
    return absl::OkStatus();
  }

  absl::Status WriteThrough(const char* data, size_t bytes) {
    return status_.ok() ? Fail(file_.Append({data, bytes})) : status_;
  }

  const std::string path_;
  OutputFile file_;
  bool closed_ = false;
  bool header_written_ = false;
  absl::Status status_;
  std::set<std::string> names_;
  std::map<std::string, std::string> metadata_;
  std::string tensors_json_;
  std::string buffer_;
  int64_t declared_ = 0;  // bytes
  int64_t appended_ = 0;
};

}  // namespace

SafetensorsWriter::~SafetensorsWriter() = default;

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(OutputFile file,
                           OutputFile::Open(path, OutputFile::Start::kNew));
  return std::make_unique<Writer>(path, std::move(file));
}

absl::StatusOr<std::string> SafetensorsDtypeName(c10::ScalarType dtype) {
  for (const DtypeName& entry : kDtypes) {
    if (entry.dtype == dtype) return std::string(entry.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(c10::toString(dtype), " has no place in safetensors"));
}

absl::StatusOr<c10::ScalarType> SafetensorsDtype(absl::string_view name) {
  for (const DtypeName& entry : kDtypes) {
    if (entry.name == name) return entry.dtype;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown dtype '", name, "'"));
}

}  // namespace capstan
