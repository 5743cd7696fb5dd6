// SPDX-License-Identifier: Apache-2.0
//
// Separate from the code, so that a test can link the code of several plugins.
#include "plugins/sdk/plugin.h"

#include "plugins/model/decoder/decoder.h"

namespace capstan::decoder {

CAPSTAN_PLUGIN(Model, Decoder, capstan::decoder::Config,
               "Decoders from Hugging Face folders: Llama, Mistral, Qwen, "
               "Gemma, SmolLM, OLMo, Phi ..");

}  // namespace capstan::decoder
