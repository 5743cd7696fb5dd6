// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/objective/advantages.h"

#include <cmath>
#include <cstddef>
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan::grpo {
namespace {

constexpr double kEpsilon = 1e-4;

// Of the values that are numbers.
struct Moments {
  double count = 0.0;
  double mean = 0.0;
  double stddev = 0.0;  // 0 of fewer than two
};

Moments MomentsOf(absl::Span<const double> values) {
  Moments moments;
  // Sums are of differences from the first, so that equal values have exactly
  // their mean.
  double first = 0.0, sum = 0.0, squares = 0.0;
  for (const double value : values) {
    if (std::isnan(value)) continue;
    if (moments.count == 0.0) first = value;
    ++moments.count;
    sum += value - first;
  }
  if (moments.count > 0.0) moments.mean = first + sum / moments.count;
  for (const double value : values) {
    if (!std::isnan(value)) squares += std::pow(value - moments.mean, 2);
  }
  if (moments.count > 1.0) {
    moments.stddev = std::sqrt(squares / (moments.count - 1.0));
  }
  return moments;
}

}  // namespace

std::vector<double> AdvantagesOf(Advantage advantage, int64_t group_size,
                                 absl::Span<const double> rewards) {
  const auto size = static_cast<size_t>(group_size);
  CHECK(size > 0 && rewards.size() % size == 0)
      << rewards.size() << " rewards in groups of " << size;
  std::vector<double> advantages(rewards.begin(), rewards.end());
  for (size_t begin = 0; begin < rewards.size(); begin += size) {
    const Moments group = MomentsOf(rewards.subspan(begin, size));
    for (double& value : absl::MakeSpan(advantages).subspan(begin, size)) {
      value -= group.mean;
      if (advantage == GROUP_STD) value /= group.stddev + kEpsilon;
      // r less the mean of the other n - 1 is n / (n - 1) times r less the mean
      // of all.
      if (advantage == LEAVE_ONE_OUT && group.count > 1.0) {
        value *= group.count / (group.count - 1.0);
      }
    }
  }
  if (advantage == BATCH_STD) {
    const double stddev = MomentsOf(rewards).stddev + kEpsilon;
    for (double& value : advantages) value /= stddev;
  } else if (advantage == REINFORCE_PP) {
    const Moments all = MomentsOf(advantages);
    for (double& value : advantages) {
      value = (value - all.mean) / (all.stddev + kEpsilon);
    }
  }
  for (double& value : advantages) {
    if (std::isnan(value)) value = 0.0;
  }
  return advantages;
}

double StandardDeviation(absl::Span<const double> values) {
  return MomentsOf(values).stddev;
}

}  // namespace capstan::grpo
