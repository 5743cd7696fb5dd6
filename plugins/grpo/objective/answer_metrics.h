// SPDX-License-Identifier: Apache-2.0
//
// What is told of answers beside the loss: what they are worth, how long they
// are, and how often they call tools.
#ifndef CAPSTAN_PLUGINS_GRPO_OBJECTIVE_ANSWER_METRICS_H_
#define CAPSTAN_PLUGINS_GRPO_OBJECTIVE_ANSWER_METRICS_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "plugins/grpo/objective/turns.h"
#include "plugins/grpo/rewards/rewards.h"
#include "plugins/sdk/objective.h"

namespace capstan::grpo {

class AnswerMetrics {
 public:
  // `rewards`: their names.
  AnswerMetrics(bool has_tools, std::vector<std::string> rewards)
      : has_tools_(has_tools), rewards_(std::move(rewards)) {}

  // TRL's: "reward" first, "rewards/NAME/mean" last.
  std::vector<std::string> names() const;

  // Of answer `i`, in the order of names(); NaN: doesn't apply. What SetGroup
  // sets is 0.
  std::vector<double> Of(const Conversation& answer,
                         const Rewards::Scores& scores, size_t i) const;
  // Sets what depends on the prompt's other answers, too.
  static void SetGroup(absl::Span<const double> rewards,
                       std::vector<double>* metrics);

  // [M, 2], as LossSum::metrics: the sums of kAnswerMetrics [B, M] and how many
  // answers they are of, or, of tools' failures, how many calls.
  at::Tensor SumsOf(const at::Tensor& each) const;

  // Of an evaluation's answers, for Objective::Measure and Summarize.
  std::vector<double> Measure(absl::Span<const Conversation> answers,
                              const Rewards::Scores& scores) const;
  Measurement Summarize(absl::Span<const double> sums) const;

 private:
  const bool has_tools_;
  const std::vector<std::string> rewards_;
};

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_OBJECTIVE_ANSWER_METRICS_H_
