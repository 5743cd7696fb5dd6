// SPDX-License-Identifier: Apache-2.0
//
// Separate from the code, so that a test can link the code of several plugins.
#include "plugins/sdk/plugin.h"

#include "plugins/objective/reward/reward.h"

namespace capstan::reward {

CAPSTAN_PLUGIN(Objective, Reward, capstan::reward::Config,
               "reward models: learns to score the preferred one of two "
               "answers higher");

}  // namespace capstan::reward
