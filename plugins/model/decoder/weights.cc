// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/weights.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/random.h"

namespace capstan::decoder {

absl::Status NewRows::Read(const std::string& name, uint64_t seed, int64_t rows,
                           int64_t begin, int64_t count, float* out) {
  const int64_t old = rows_ * width_;
  const int64_t from_file = std::clamp<int64_t>(old - begin, 0, count);
  if (from_file > 0) {
    CAPSTAN_RETURN_IF_ERROR(weights_->ReadFloats(name, begin, from_file, out));
  }
  if (from_file == count) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<float>* const drawn,
                           Drawn(name, seed, rows));
  std::copy_n(drawn->data() + (begin + from_file - old), count - from_file,
              out + from_file);
  return absl::OkStatus();
}

absl::StatusOr<const std::vector<float>*> NewRows::Drawn(
    const std::string& name, uint64_t seed, int64_t rows) {
  constexpr double kCovarianceShare = 1e-9;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = drawn_.find({name, seed});
  if (found != drawn_.end()) return &found->second;
  // With g_i standard normal, the sum over the n old rows x_i of
  // g_i (x_i - mean) / sqrt(n) has their covariance, X^T X / n: that needs no
  // factor of it.
  const int64_t added = rows - rows_;
  const uint64_t key = RandomKey(seed, absl::StrCat("new_rows.", name));
  std::vector<double> mean(width_, 0.0), weights(added, 0.0);
  std::vector<double> sums(rows_ > width_ ? added * width_ : 0, 0.0);
  std::vector<float> row(width_), normal(added);
  for (int64_t r = 0; r < rows_; ++r) {
    CAPSTAN_RETURN_IF_ERROR(
        weights_->ReadFloats(name, r * width_, width_, row.data()));
    for (int64_t i = 0; i < width_; ++i) mean[i] += row[i];
    if (sums.empty()) continue;
    FillNormal(key, r * added, added, 0.0f, 1.0f, normal.data());
    for (int64_t a = 0; a < added; ++a) {
      const double g = normal[a];
      double* const sum = &sums[a * width_];
      weights[a] += g;
      for (int64_t i = 0; i < width_; ++i) sum[i] += g * row[i];
    }
  }
  const auto n = static_cast<double>(rows_);
  const double scale = std::sqrt(kCovarianceShare / n);
  std::vector<float> drawn(added * width_);
  for (int64_t a = 0; a < added; ++a) {
    for (int64_t i = 0; i < width_; ++i) {
      const double centre = mean[i] / n;
      const double noise =
          sums.empty() ? 0.0 : sums[a * width_ + i] - weights[a] * centre;
      drawn[a * width_ + i] = static_cast<float>(centre + scale * noise);
    }
  }
  const auto made = drawn_.emplace(std::pair(name, seed), std::move(drawn));
  return &made.first->second;
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
  const DecoderLayout layout(sizes);
  std::vector<ParameterSpec> specs = layout.specs;
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
  if (sizes.new_scores) specs.erase(specs.begin() + layout.head);
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
