// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/metric_sums.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace capstan {

std::vector<std::string> StepMetricTags(const RunParts& parts) {
  std::vector<std::string> tags;
  for (const MetricTags& tag : parts.objective->metrics()) {
    tags.push_back(tag.train);
  }
  if (parts.fp8.has_value() && parts.fp8->log_underflow) {
    for (const char* kind : {"inputs", "weights", "gradients"}) {
      tags.push_back(absl::StrCat("train/fp8_underflow_", kind));
    }
  }
  return tags;
}

MetricSums::MetricSums(std::vector<std::string> tags) : tags_(std::move(tags)) {
  for (size_t row = 0; row < tags_.size(); ++row) {
    if (absl::EndsWith(tags_[row], "_max")) {
      greatest_.push_back(static_cast<int64_t>(row));
    }
  }
}

void MetricSums::Add(const at::Tensor& metrics, at::Tensor* sum) const {
  if (!sum->defined()) {
    *sum = metrics;
    return;
  }
  at::Tensor added = *sum + metrics;
  for (const int64_t row : greatest_) {
    added[row][0].copy_(at::maximum((*sum)[row][0], metrics[row][0]));
  }
  *sum = added;
}

at::Tensor MetricSums::ForRanks(const at::Tensor& sum, int rank,
                                int ranks) const {
  const at::Tensor flat = sum.to(at::kDouble).reshape({-1});
  if (greatest_.empty()) return flat;
  const auto count = static_cast<int64_t>(greatest_.size());
  const at::Tensor places = at::zeros({count, ranks}, flat.options());
  for (int64_t i = 0; i < count; ++i) {
    places[i][rank].copy_(flat[2 * greatest_[i]]);
  }
  return at::cat({flat, places.reshape({-1})});
}

int64_t MetricSums::numbers(int ranks) const {
  return static_cast<int64_t>(2 * tags_.size() + greatest_.size() * ranks);
}

TaggedNumbers MetricSums::Numbers(absl::Span<const double> sums,
                                  int ranks) const {
  TaggedNumbers numbers;
  const double* place = sums.data() + 2 * tags_.size();
  auto next = greatest_.begin();
  for (size_t row = 0; row < tags_.size(); ++row) {
    const double divisor = sums[2 * row + 1];
    double value = sums[2 * row] / divisor;
    if (next != greatest_.end() && *next == static_cast<int64_t>(row)) {
      // A NaN counts as the greatest.
      value = *std::max_element(place, place + ranks, [](double a, double b) {
        return std::isnan(b) ? !std::isnan(a) : a < b;
      });
      place += ranks;
      ++next;
    }
    // 0 of 0: not in this step.
    if (divisor != 0.0) numbers.emplace_back(tags_[row], value);
  }
  return numbers;
}

}  // namespace capstan
