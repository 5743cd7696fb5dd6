// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/objective/answer_metrics.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>

#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "plugins/grpo/objective/advantages.h"

namespace capstan::grpo {
namespace {

// The first of names(), behind which are, with tools, kTools, and then rewards.
constexpr const char* kFirst[] = {
    "reward", "reward_std", "frac_reward_zero_std", "completions/mean_length",
    "completions/clipped_ratio"};
// An answer's calls, and how many of all calls failed.
constexpr const char* kTools[] = {"tools/call_frequency",
                                  "tools/failure_frequency"};

constexpr size_t kFirstReward = 6;  // of Measure's sums

std::string RewardMetric(const std::string& name) {
  return absl::StrCat("rewards/", name, "/mean");
}

}  // namespace

std::vector<std::string> AnswerMetrics::names() const {
  std::vector<std::string> names(std::begin(kFirst), std::end(kFirst));
  if (has_tools_) {
    names.insert(names.end(), std::begin(kTools), std::end(kTools));
  }
  for (const std::string& name : rewards_) names.push_back(RewardMetric(name));
  return names;
}

std::vector<double> AnswerMetrics::Of(const Conversation& answer,
                                      const Rewards::Scores& scores,
                                      size_t i) const {
  std::vector<double> metrics = {scores.totals[i], 0.0, 0.0,
                                 static_cast<double>(answer.own()),
                                 answer.truncated ? 1.0 : 0.0};
  if (has_tools_) {
    metrics.push_back(static_cast<double>(answer.calls));
    metrics.push_back(static_cast<double>(answer.failures));
  }
  for (const std::vector<double>& values : scores.values) {
    metrics.push_back(values[i]);
  }
  return metrics;
}

void AnswerMetrics::SetGroup(absl::Span<const double> rewards,
                             std::vector<double>* metrics) {
  const double deviation = StandardDeviation(rewards);
  (*metrics)[1] = deviation;
  (*metrics)[2] = deviation == 0.0 ? 1.0 : 0.0;
}

at::Tensor AnswerMetrics::SumsOf(const at::Tensor& each) const {
  const at::Tensor sums = each.nan_to_num(0.0).sum(0);
  const at::Tensor counts = each.isnan().logical_not().sum(0).to(at::kDouble);
  if (has_tools_) {
    constexpr int64_t kCalls = std::size(kFirst);
    counts[kCalls + 1].copy_(sums[kCalls]);
  }
  return at::stack({sums, counts}, 1);
}

std::vector<double> AnswerMetrics::Measure(
    absl::Span<const Conversation> answers,
    const Rewards::Scores& scores) const {
  // Reward, length, those cut off and their number, calls and failures; each
  // reward and its number.
  std::vector<double> sums(kFirstReward + 2 * scores.values.size(), 0.0);
  for (size_t i = 0; i < answers.size(); ++i) {
    sums[0] += scores.totals[i];
    sums[1] += static_cast<double>(answers[i].own());
    sums[2] += answers[i].truncated ? 1.0 : 0.0;
    sums[3] += 1.0;
    sums[4] += static_cast<double>(answers[i].calls);
    sums[5] += static_cast<double>(answers[i].failures);
    for (size_t f = 0; f < scores.values.size(); ++f) {
      const double value = scores.values[f][i];
      if (std::isnan(value)) continue;
      sums[kFirstReward + 2 * f] += value;
      sums[kFirstReward + 2 * f + 1] += 1.0;
    }
  }
  return sums;
}

Measurement AnswerMetrics::Summarize(absl::Span<const double> sums) const {
  Measurement measurement;
  const auto add = [&measurement](const std::string& name, double value) {
    measurement.scalars.emplace_back(absl::StrCat("eval/", name), value);
  };
  add(kFirst[0], sums[0] / sums[3]);
  add(kFirst[3], sums[1] / sums[3]);
  add(kFirst[4], sums[2] / sums[3]);
  if (has_tools_) add(kTools[0], sums[4] / sums[3]);
  if (sums[4] > 0.0) add(kTools[1], sums[5] / sums[4]);
  for (size_t f = 0; f < rewards_.size(); ++f) {
    const double* const of = &sums[kFirstReward + 2 * f];
    if (of[1] > 0.0) add(RewardMetric(rewards_[f]), of[0] / of[1]);
  }
  return measurement;
}

}  // namespace capstan::grpo
