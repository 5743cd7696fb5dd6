// SPDX-License-Identifier: Apache-2.0
//
// Separate from the code, so that a test can link the code of several plugins.
#include "plugins/sdk/plugin.h"

#include "plugins/dpo/objective/dpo.h"

namespace capstan::dpo {

CAPSTAN_PLUGIN(Objective, Dpo, capstan::dpo::Config,
               "learns from pairs of a preferred and a rejected answer: DPO, "
               "IPO, ORPO, SimPO; or from answers with labels: KTO");

}  // namespace capstan::dpo
