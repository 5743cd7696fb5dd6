// SPDX-License-Identifier: Apache-2.0
//
// Separate from the code, so that a test can link the code of several plugins.
#include "plugins/sdk/plugin.h"

#include "plugins/objective/causal_lm/causal_lm.h"

namespace capstan::causal_lm {

CAPSTAN_PLUGIN(Objective, CausalLm, capstan::causal_lm::Config,
               "next-token prediction; samples with temperature, top-k, top-p");

}  // namespace capstan::causal_lm
