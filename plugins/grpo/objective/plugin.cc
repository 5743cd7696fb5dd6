// SPDX-License-Identifier: Apache-2.0
//
// Separate from the code, so that a test can link the code of several plugins.
#include "plugins/sdk/plugin.h"

#include "plugins/grpo/objective/grpo.h"

namespace capstan::grpo {

CAPSTAN_PLUGIN(Objective, Grpo, capstan::grpo::Config,
               "learns from rewards of answers that the model samples: GRPO, "
               "Dr. GRPO, DAPO, RLOO, REINFORCE++ and others");

}  // namespace capstan::grpo
