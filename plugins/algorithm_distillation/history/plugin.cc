// SPDX-License-Identifier: Apache-2.0
//
// Separate from the code, so that a test can link the code of several plugins.
#include "plugins/sdk/plugin.h"

#include "plugins/algorithm_distillation/history/ad_history.h"

namespace capstan::ad_history {

CAPSTAN_PLUGIN(DatasetReader, AdHistory, capstan::ad_history::Config,
               "learning histories, plain or in regions");

}  // namespace capstan::ad_history
