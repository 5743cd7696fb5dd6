// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/lib/quantized_folder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "base/status.h"
#include "kernels/quant/nf4.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;
using kernels::kNf4Block;
using kernels::Nf4Layout;

constexpr char kState[] = ".quant_state.bitsandbytes__nf4";
constexpr char kOtherState[] = ".quant_state.bitsandbytes__";

// Where a quantised matrix's parts are in the mapped files.
struct Parts {
  Nf4Layout layout;
  const char* nibbles = nullptr;
  const char* scales = nullptr;        // float32, or uint8 if quantised
  const char* group_scales = nullptr;  // float32
  float offset = 0.0f;
};

class MappedMatrix final : public PackedMatrix {
 public:
  explicit MappedMatrix(const Parts& parts) : parts_(parts) {}

  Quantize format() const override {
    return parts_.layout.double_quantised ? Quantize::kNf4Double
                                          : Quantize::kNf4;
  }
  int64_t bytes() const override { return parts_.layout.bytes; }

  absl::Status ReadBytes(int64_t begin, int64_t count,
                         uint8_t* out) const override {
    const Nf4Layout& l = parts_.layout;
    std::memset(out, 0, count);  // what is between the parts
    const auto put = [&](int64_t from, const void* bytes, int64_t length) {
      const int64_t first = std::max(begin, from);
      const int64_t end = std::min(begin + count, from + length);
      if (first >= end) return;
      std::memcpy(out + first - begin,
                  static_cast<const char*>(bytes) + first - from, end - first);
    };
    put(0, parts_.nibbles, l.nibbles);
    if (l.double_quantised) {
      put(l.offset, &parts_.offset, 4);
      put(l.group_scales, parts_.group_scales, 4 * l.groups);
    }
    put(l.scales, parts_.scales, l.bytes - l.scales);
    return absl::OkStatus();
  }

  absl::Status ReadValues(int64_t begin, int64_t count,
                          float* out) const override {
    constexpr int64_t kBlocks = 256;
    float scales[kBlocks];
    const auto* nibbles = reinterpret_cast<const uint8_t*>(parts_.nibbles);
    for (const int64_t end = begin + count; begin < end;) {
      const int64_t block = begin / kNf4Block;
      const int64_t stop = std::min(end, (block + kBlocks) * kNf4Block);
      Scales(block, (stop + kNf4Block - 1) / kNf4Block - block, scales);
      kernels::kNf4.best().dequantize(nibbles, scales, begin, stop - begin,
                                      out);
      out += stop - begin;
      begin = stop;
    }
    return absl::OkStatus();
  }

 private:
  void Scales(int64_t first, int64_t count, float* scales) const {
    if (parts_.layout.double_quantised) {
      kernels::Nf4DoubleScales(reinterpret_cast<const uint8_t*>(parts_.scales),
                               parts_.group_scales, parts_.offset, first, count,
                               scales);
    } else {
      std::memcpy(scales, parts_.scales + 4 * first, 4 * count);
    }
  }

  const Parts parts_;
};

// Reads and checks one quantised matrix of `tensors`.
class MatrixReader {
 public:
  MatrixReader(const std::map<std::string, TensorEntry>& tensors,
               std::string name)
      : tensors_(tensors), name_(std::move(name)) {}

  absl::Status Read() {
    CAPSTAN_RETURN_IF_ERROR(ReadState());
    const Nf4Layout& l = parts_.layout;
    CAPSTAN_RETURN_IF_ERROR(Find("", l.nibbles, &parts_.nibbles));
    CAPSTAN_RETURN_IF_ERROR(CheckNumbers("quant_map", kernels::kNf4Values, 16));
    CAPSTAN_RETURN_IF_ERROR(Find(
        "absmax", l.bytes - l.scales, &parts_.scales,
        l.double_quantised ? c10::ScalarType::Byte : c10::ScalarType::Float));
    if (!l.double_quantised) return absl::OkStatus();
    CAPSTAN_RETURN_IF_ERROR(Find("nested_absmax", 4 * l.groups,
                                 &parts_.group_scales, c10::ScalarType::Float));
    return CheckNumbers("nested_quant_map", kernels::DynamicValues(), 256);
  }

  const Parts& parts() const { return parts_; }
  // As if it weren't quantised.
  TensorEntry entry() const {
    TensorEntry entry = tensors_.at(name_);
    entry.dtype = dtype_;
    entry.shape = shape_;
    entry.numel = parts_.layout.numel;
    entry.data = nullptr;
    entry.bytes = entry.numel * static_cast<int64_t>(c10::elementSize(dtype_));
    return entry;
  }
  // Those of its parts, itself included.
  std::vector<std::string> names() const {
    std::vector<std::string> names = {name_, name_ + kState};
    for (const char* part :
         {"absmax", "quant_map", "nested_absmax", "nested_quant_map"}) {
      names.push_back(absl::StrCat(name_, ".", part));
    }
    return names;
  }

 private:
  absl::Status Bad(const std::string& what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(tensors_.at(name_ + kState).file,
                     ": the quantised tensor '", name_, "' ", what));
  }

  absl::Status Find(const std::string& part, int64_t bytes, const char** data,
                    absl::optional<c10::ScalarType> dtype = {}) {
    const std::string name = part.empty() ? name_ : name_ + "." + part;
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      return Bad(absl::StrCat("lacks '", name, "'"));
    }
    if (found->second.bytes != bytes ||
        (dtype.has_value() && found->second.dtype != *dtype)) {
      return Bad(absl::StrCat(
          "needs ", bytes, " bytes ",
          dtype.has_value() ? absl::StrCat("of ", c10::toString(*dtype), " ")
                            : "",
          "in '", name, "', which has ", found->second.bytes, " of ",
          c10::toString(found->second.dtype)));
    }
    *data = found->second.data;
    return absl::OkStatus();
  }

  // Other numbers than NF4's would need other code.
  absl::Status CheckNumbers(const char* part, const float* wanted,
                            int64_t count) {
    const char* data = nullptr;
    CAPSTAN_RETURN_IF_ERROR(
        Find(part, 4 * count, &data, c10::ScalarType::Float));
    if (std::memcmp(data, wanted, 4 * count) == 0) return absl::OkStatus();
    return Bad(absl::StrCat("has other numbers in ", part,
                            " than bitsandbytes writes for NF4, which are all "
                            "that is implemented"));
  }

  absl::Status ReadState() {
    const TensorEntry& entry = tensors_.at(name_ + kState);
    const Json json = ParseJson<Json>(
        absl::string_view(entry.data, static_cast<size_t>(entry.bytes)));
    if (!json.is_object()) {
      return Bad(
          absl::StrCat("has a '", name_, kState, "' that isn't a JSON object"));
    }
    const auto is = [&](const char* key, const Json& wanted) {
      return json.contains(key) && json[key] == wanted;
    };
    if (!is("quant_type", "nf4") || !is("blocksize", kNf4Block)) {
      return Bad(
          "isn't in NF4 with blocks of 64, which is all that is "
          "implemented");
    }
    const bool twice = json.contains("nested_blocksize");
    if (twice && (!is("nested_blocksize", kernels::kNf4Group) ||
                  !is("nested_dtype", "float32"))) {
      return Bad(
          "has scales that aren't quantised in blocks of 256 with "
          "float32, which is all that is implemented");
    }
    CAPSTAN_RETURN_IF_ERROR(ReadShape(json));
    parts_.layout = Nf4Layout(shape_[0] * shape_[1], twice);
    if (!twice) return absl::OkStatus();
    if (!json.contains("nested_offset") || !json["nested_offset"].is_number()) {
      return Bad("has no nested_offset");
    }
    parts_.offset = static_cast<float>(json["nested_offset"].get<double>());
    return std::isfinite(parts_.offset)
               ? absl::OkStatus()
               : Bad("has a nested_offset that isn't finite");
  }

  absl::Status ReadShape(const Json& json) {
    for (const auto& [name, dtype] :
         {std::make_pair("float32", c10::ScalarType::Float),
          std::make_pair("bfloat16", c10::ScalarType::BFloat16),
          std::make_pair("float16", c10::ScalarType::Half)}) {
      if (json.contains("dtype") && json["dtype"] == name) dtype_ = dtype;
    }
    if (dtype_ == c10::ScalarType::Undefined) {
      return Bad("has a dtype that is none of float32, bfloat16 and float16");
    }
    // Far below what could overflow.
    constexpr int64_t kMost = int64_t{1} << 28;
    if (json.contains("shape") && json["shape"].is_array()) {
      for (const Json& size : json["shape"]) {
        shape_.push_back(JsonInteger(size).value_or(0));
      }
    }
    if (shape_.size() == 2 && shape_[0] > 0 && shape_[0] < kMost &&
        shape_[1] > 0 && shape_[1] < kMost) {
      return absl::OkStatus();
    }
    return Bad("has a shape that isn't a matrix's");
  }

  const std::map<std::string, TensorEntry>& tensors_;
  const std::string name_;
  std::vector<int64_t> shape_;
  c10::ScalarType dtype_ = c10::ScalarType::Undefined;
  Parts parts_;
};

class QuantizedFolder final : public QuantizedReader {
 public:
  explicit QuantizedFolder(std::unique_ptr<SafetensorsReader> files)
      : files_(std::move(files)), tensors_(files_->tensors()) {}

  absl::Status Add(const std::string& name) {
    MatrixReader reader(files_->tensors(), name);
    CAPSTAN_RETURN_IF_ERROR(reader.Read());
    for (const std::string& part : reader.names()) tensors_.erase(part);
    tensors_[name] = reader.entry();
    matrices_.emplace(name, MappedMatrix(reader.parts()));
    return absl::OkStatus();
  }

  const std::map<std::string, TensorEntry>& tensors() const override {
    return tensors_;
  }
  const std::map<std::string, std::string>& metadata() const override {
    return files_->metadata();
  }
  absl::Status ReadFloats(const std::string& name, int64_t begin, int64_t count,
                          float* out) const override {
    const PackedMatrix* const matrix = Packed(name);
    if (matrix == nullptr) return files_->ReadFloats(name, begin, count, out);
    const int64_t numel = tensors_.at(name).numel;
    if (begin < 0 || count < 0 || begin > numel - count) {
      return absl::OutOfRangeError(absl::StrCat("elements [", begin, ", ",
                                                begin + count, ") of '", name,
                                                "', which has ", numel));
    }
    return matrix->ReadValues(begin, count, out);
  }
  void ExpectRepeatedReads() const override { files_->ExpectRepeatedReads(); }
  const PackedMatrix* Packed(const std::string& name) const override {
    const auto found = matrices_.find(name);
    return found == matrices_.end() ? nullptr : &found->second;
  }

 private:
  const std::unique_ptr<SafetensorsReader> files_;
  std::map<std::string, TensorEntry> tensors_;
  std::map<std::string, MappedMatrix> matrices_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenWeights(
    const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsReader> files,
                           SafetensorsReader::Open(path));
  std::vector<std::string> names;
  for (const auto& [name, entry] : files->tensors()) {
    absl::string_view matrix = name;
    if (absl::ConsumeSuffix(&matrix, kState)) {
      names.emplace_back(matrix);
    } else if (absl::StrContains(name, kOtherState)) {
      return absl::InvalidArgumentError(
          absl::StrCat(entry.file, ": '", name,
                       "' shows that a tensor is quantised, but "
                       "not to NF4, which is all that is implemented"));
    }
  }
  if (names.empty()) return files;
  auto folder = std::make_unique<QuantizedFolder>(std::move(files));
  for (const std::string& name : names) {
    CAPSTAN_RETURN_IF_ERROR(folder->Add(name));
  }
  return std::unique_ptr<SafetensorsReader>(std::move(folder));
}

absl::Status CheckQuantizationConfig(absl::string_view text) {
  const Json json = ParseJson<Json>(text);
  const auto is = [&](const char* key, const Json& wanted) {
    return json.is_object() && json.contains(key) && json[key] == wanted;
  };
  if (is("quant_method", "bitsandbytes") && is("load_in_4bit", true) &&
      is("bnb_4bit_quant_type", "nf4")) {
    return absl::OkStatus();
  }
  const auto text_of = [&](const char* key) {
    return json.is_object() && json.contains(key)
               ? absl::StrCat(key, " ", JsonText(json[key]))
               : absl::StrCat("no ", key);
  };
  return absl::InvalidArgumentError(absl::StrCat(
      "has ", text_of("quant_method"), " and ", text_of("bnb_4bit_quant_type"),
      "; only weights that aren't quantized, and bitsandbytes' NF4 "
      "(quant_method \"bitsandbytes\", load_in_4bit, bnb_4bit_quant_type "
      "\"nf4\"), can be read"));
}

}  // namespace capstan
