// SPDX-License-Identifier: Apache-2.0
//
// Separate from the code, so that a test can link the code of several plugins.
#include "plugins/sdk/plugin.h"

#include "plugins/llada/model/llada.h"

namespace capstan::llada {

CAPSTAN_PLUGIN(Model, Llada, capstan::llada::Config,
               "LLaDA: a Llama that sees the whole text, for masked "
               "diffusion; of given sizes or from a folder");

}  // namespace capstan::llada
