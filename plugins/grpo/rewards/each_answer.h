// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_GRPO_REWARDS_EACH_ANSWER_H_
#define CAPSTAN_PLUGINS_GRPO_REWARDS_EACH_ANSWER_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "plugins/grpo/rewards/reward.h"

namespace capstan::grpo {

// A reward that looks at answers one by one, and, unless it says otherwise, not
// at their rows.
class EachAnswer : public RewardFunction {
 public:
  absl::Status CheckRow(absl::string_view row) const override {
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<double>> Score(
      absl::Span<const Answer> answers) final {
    std::vector<double> values;
    for (const Answer& answer : answers) {
      absl::StatusOr<double> value = ScoreOne(answer);
      if (!value.ok()) return value.status();
      values.push_back(*value);
    }
    return values;
  }

 private:
  virtual absl::StatusOr<double> ScoreOne(const Answer& answer) const = 0;
};

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_REWARDS_EACH_ANSWER_H_
