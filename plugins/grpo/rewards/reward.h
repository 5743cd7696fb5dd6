// SPDX-License-Identifier: Apache-2.0
//
// What answers are worth: by the text alone, by the prompt's row, or by a
// program that is asked.
#ifndef CAPSTAN_PLUGINS_GRPO_REWARDS_REWARD_H_
#define CAPSTAN_PLUGINS_GRPO_REWARDS_REWARD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "plugins/grpo/rewards/rewards.pb.h"

namespace capstan::grpo {

// An answer to score. The strings outlive the call.
struct Answer {
  absl::string_view row;     // JSON of the prompt's row, as in its file
  absl::string_view prompt;  // as the model read it
  absl::string_view text;    // without the token that ended it
  int64_t tokens = 0;
  bool truncated = false;  // max_new_tokens ended it
};

// Not thread-safe.
class RewardFunction {
 public:
  virtual ~RewardFunction() = default;

  virtual const std::string& name() const = 0;

  // Checks a row of the data, so that a field that is missing is told before
  // training.
  virtual absl::Status CheckRow(absl::string_view row) const = 0;

  // A finite number for each answer, in order; NaN where this reward doesn't
  // apply. The same for the same answers, however they are divided into calls,
  // unless a program says otherwise. Errors name the reward and what to do.
  virtual absl::StatusOr<std::vector<double>> Score(
      absl::Span<const Answer> answers) = 0;
};

// Starts nothing; programs start at the first Score. FieldError for invalid
// values.
absl::StatusOr<std::unique_ptr<RewardFunction>> NewReward(const Reward& config);

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_REWARDS_REWARD_H_
