// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/weights.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace capstan::decoder {

absl::Status NewRows::Read(const std::string& name, int64_t begin,
                           int64_t count, float* out) {
  const int64_t old = rows_ * width_;
  const int64_t from_file = std::clamp<int64_t>(old - begin, 0, count);
  if (from_file > 0) {
    CAPSTAN_RETURN_IF_ERROR(weights_->ReadFloats(name, begin, from_file, out));
  }
  if (from_file == count) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<float>* const mean, Mean(name));
  for (int64_t i = from_file; i < count; ++i) {
    out[i] = (*mean)[(begin + i) % width_];
  }
  return absl::OkStatus();
}

absl::StatusOr<const std::vector<float>*> NewRows::Mean(
    const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = means_.find(name);
  if (found != means_.end()) return &found->second;
  std::vector<double> sums(width_, 0.0);
  std::vector<float> row(width_);
  for (int64_t r = 0; r < rows_; ++r) {
    CAPSTAN_RETURN_IF_ERROR(
        weights_->ReadFloats(name, r * width_, width_, row.data()));
    for (int64_t i = 0; i < width_; ++i) sums[i] += row[i];
  }
  std::vector<float> mean(width_);
  for (int64_t i = 0; i < width_; ++i) {
    mean[i] = static_cast<float>(sums[i] / static_cast<double>(rows_));
  }
  return &means_.emplace(name, std::move(mean)).first->second;
}

namespace {

// What `name` is in the files: as DecoderConfig::file_names has it, the first
// that is there.
std::string NameInFiles(const DecoderConfig& config, const std::string& name,
                        const SafetensorsReader& weights) {
  for (const auto& [start, others] : config.file_names) {
    if (!absl::StartsWith(name, start)) continue;
    for (const std::string& other : others) {
      const std::string there = other + name.substr(start.size());
      if (weights.tensors().count(there) > 0) return there;
    }
    return others.front() + name.substr(start.size());
  }
  return name;
}

}  // namespace

absl::StatusOr<DecoderCheckpoint> OpenCheckpoint(
    const std::string& folder, absl::StatusOr<DecoderConfig> config,
    int64_t vocab_size) {
  if (!config.ok()) return FieldError("pretrained", config.status().message());
  DecoderCheckpoint checkpoint;
  checkpoint.config = *std::move(config);
  DecoderConfig& sizes = checkpoint.config;
  std::vector<ParameterSpec> specs = ParameterSpecs(sizes);
  if (!sizes.file_names.empty()) {
    const auto weights = SafetensorsReader::Open(folder);
    if (!weights.ok()) {
      return FieldError("pretrained", weights.status().message());
    }
    for (ParameterSpec& spec : specs) {
      spec.name = NameInFiles(sizes, spec.name, **weights);
      checkpoint.file_names.push_back(spec.name);
    }
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      checkpoint.weights,
      OpenPretrained(folder, specs, [&](absl::string_view name) {
        return IsUnused(sizes, name);
      }));
  const int64_t rows = sizes.vocab_size;
  if (vocab_size == 0 || vocab_size == rows) return checkpoint;
  if (vocab_size < rows) {
    return FieldError("vocab_size",
                      absl::StrCat("is ", vocab_size, ", but ", folder, " has ",
                                   rows, " tokens already: it can only grow"));
  }
  sizes.vocab_size = vocab_size;
  checkpoint.new_rows = std::make_unique<NewRows>(checkpoint.weights.get(),
                                                  rows, sizes.hidden_size);
  return checkpoint;
}

}  // namespace capstan::decoder
