// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_GRPO_REWARDS_PROGRAM_REWARD_H_
#define CAPSTAN_PLUGINS_GRPO_REWARDS_PROGRAM_REWARD_H_

#include <memory>

#include "plugins/grpo/rewards/restarted_program.h"
#include "plugins/grpo/rewards/reward.h"

namespace capstan::grpo {

// What the program says of answers, as rewards.proto's Program.
std::unique_ptr<RewardFunction> NewProgramReward(
    std::unique_ptr<RestartedProgram> program);

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_REWARDS_PROGRAM_REWARD_H_
