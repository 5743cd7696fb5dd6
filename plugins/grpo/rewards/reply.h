// SPDX-License-Identifier: Apache-2.0
//
// What is said to programs and servers about answers, and the scores that they
// say.
#ifndef CAPSTAN_PLUGINS_GRPO_REWARDS_REPLY_H_
#define CAPSTAN_PLUGINS_GRPO_REWARDS_REPLY_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "plugins/grpo/rewards/reward.h"

namespace capstan::grpo {

// {"prompt": .., "text": .., "row": {..}}, with tools also "turn" and
// "messages", in one line without its end.
std::string AnswerJson(const Answer& answer);

// A line of a program: a number, {"reward": number} or null, which gives NaN.
// INVALID_ARGUMENT quotes what isn't: `"nan" isn't a number, ..`.
absl::StatusOr<double> RewardOfLine(absl::string_view line);

// A server's {"rewards": [..]}, of `count` numbers or nulls. INVALID_ARGUMENT
// as above.
absl::StatusOr<std::vector<double>> RewardsOfBody(absl::string_view body,
                                                  size_t count);

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_REWARDS_REPLY_H_
