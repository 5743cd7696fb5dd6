// SPDX-License-Identifier: Apache-2.0
//
// Separate from the code, so that a test can link the code of several plugins.
#include "plugins/sdk/plugin.h"

#include "plugins/model/llama/llama.h"

namespace capstan::llama {

CAPSTAN_PLUGIN(Model, Llama, capstan::llama::Config,
               "Llama: RMSNorm, rotary positions, grouped-query attention, "
               "SwiGLU; of given sizes or from a Hugging Face folder");

}  // namespace capstan::llama
