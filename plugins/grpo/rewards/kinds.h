// SPDX-License-Identifier: Apache-2.0
//
// The kinds of rewards (rewards.proto says what each does). Each function
// checks its config: FieldErrors name fields of that.
#ifndef CAPSTAN_PLUGINS_GRPO_REWARDS_KINDS_H_
#define CAPSTAN_PLUGINS_GRPO_REWARDS_KINDS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "plugins/grpo/rewards/reward.h"
#include "plugins/grpo/rewards/rewards.pb.h"

namespace capstan::grpo {

using MadeReward = absl::StatusOr<std::unique_ptr<RewardFunction>>;

MadeReward NewExactMatch(const ExactMatch& config);
MadeReward NewMathAnswer(const MathAnswer& config);
MadeReward NewRegex(const Regex& config);
MadeReward NewLength(const Length& config);
MadeReward NewTags(const Tags& config);
MadeReward NewJsonSchema(const JsonSchema& config);
MadeReward NewCode(const Code& config);
MadeReward NewProgram(const Program& config);
MadeReward NewHttp(const Http& config);
MadeReward NewModel(const RewardModel& config);

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_REWARDS_KINDS_H_
