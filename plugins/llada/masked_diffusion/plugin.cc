// SPDX-License-Identifier: Apache-2.0
//
// Separate from the code, so that a test can link the code of several plugins.
#include "plugins/sdk/plugin.h"

#include "plugins/llada/masked_diffusion/masked_diffusion.h"

namespace capstan::masked_diffusion {

CAPSTAN_PLUGIN(
    Objective, MaskedDiffusion, capstan::masked_diffusion::Config,
    "masked diffusion (LLaDA): hides tokens and finds them; samples by blocks");

}  // namespace capstan::masked_diffusion
