// SPDX-License-Identifier: Apache-2.0
//
// Apart from the code, so that a test can link several plugins' code.
#include "plugins/sdk/plugin.h"

#include "plugins/model/ad_transformer/ad_transformer.h"

namespace capstan {
namespace ad_transformer {

CAPSTAN_PLUGIN(Model, AdTransformer, capstan::ad_transformer::Config,
               "Algorithm Distillation's causal encoder over learning "
               "histories of a grid world; of given sizes or from a folder");

}  // namespace ad_transformer
}  // namespace capstan
