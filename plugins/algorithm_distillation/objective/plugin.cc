// SPDX-License-Identifier: Apache-2.0
//
// Separate from the code, so that a test can link the code of several plugins.
#include "plugins/sdk/plugin.h"

#include "plugins/algorithm_distillation/objective/algorithm_distillation.h"

namespace capstan::algorithm_distillation {

CAPSTAN_PLUGIN(Objective, AlgorithmDistillation,
               capstan::algorithm_distillation::Config,
               "imitates learning histories; plays held-out tasks in context");

}  // namespace capstan::algorithm_distillation
