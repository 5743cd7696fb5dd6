// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_GRPO_REWARDS_REWARDS_H_
#define CAPSTAN_PLUGINS_GRPO_REWARDS_REWARDS_H_

#include <google/protobuf/repeated_ptr_field.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "plugins/grpo/rewards/probe.h"
#include "plugins/grpo/rewards/reward.h"
#include "plugins/grpo/rewards/rewards.pb.h"

namespace capstan::grpo {

// All rewards of a config, and their weighted sum. One thread, as
// RewardFunction.
class Rewards {
 public:
  // FieldErrors are of "reward[0].math_answer.tolerance".
  static absl::StatusOr<std::unique_ptr<Rewards>> Create(
      const google::protobuf::RepeatedPtrField<Reward>& configs);

  // Of each function, in the config's order; all differ.
  const std::vector<std::string>& names() const { return names_; }

  // Errors name the reward, and not the row's place. FieldErrors are as
  // Create's: the config is wrong for any row.
  absl::Status CheckRow(absl::string_view row) const;

  // What the rewards that are Probed said of the first row that was checked.
  Probes probes() const;

  struct Scores {
    std::vector<double> totals;               // [answers], finite
    std::vector<std::vector<double>> values;  // [functions][answers], or NaN
  };
  // A total is the sum of the values times their weights, without those that
  // are NaN. An answer that no reward applies to is an error, and so is a value
  // beyond float. Errors name the reward.
  absl::StatusOr<Scores> Score(absl::Span<const Answer> answers);

 private:
  Rewards() = default;

  std::vector<Reward> configs_;
  std::vector<std::string> names_;
  std::vector<double> weights_;
  std::vector<std::unique_ptr<RewardFunction>> functions_;
};

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_REWARDS_REWARDS_H_
