// SPDX-License-Identifier: Apache-2.0
//
// Apart from the code, so that a test can link several plugins' code.
#include "plugins/sdk/plugin.h"

#include "plugins/model/llada_scratch/llada_scratch.h"

namespace capstan {
namespace llada_scratch {

CAPSTAN_PLUGIN(Model, LladaScratch, capstan::llada_scratch::Config,
               "LLaDA's small model from scratch: learned positions, "
               "LayerNorm, GELU, and sight of the whole text");

}  // namespace llada_scratch
}  // namespace capstan
