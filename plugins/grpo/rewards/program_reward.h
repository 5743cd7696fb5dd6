// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_GRPO_REWARDS_PROGRAM_REWARD_H_
#define CAPSTAN_PLUGINS_GRPO_REWARDS_PROGRAM_REWARD_H_

#include <cstdint>
#include <memory>

#include "base/subprocess.h"
#include "plugins/grpo/rewards/reward.h"

namespace capstan::grpo {

// How often a program is started anew for the same answers.
constexpr int64_t kDefaultRestarts = 2;

// What `child` (LineProgram::Start) says of answers, as rewards.proto's
// Program.
std::unique_ptr<RewardFunction> NewProgramReward(::capstan::Program child,
                                                 double seconds,
                                                 int64_t restarts);

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_REWARDS_PROGRAM_REWARD_H_
