// SPDX-License-Identifier: Apache-2.0
//
// Models and objectives.
#include "tests/conformance/model.h"
#include "tests/conformance/objective.h"

#define SIZES                                             \
  "vocab_size: 61 hidden_size: 16 intermediate_size: 24 " \
  "num_hidden_layers: 2 num_attention_heads: 4 "          \
  "num_key_value_heads: 2 max_position_embeddings: 16"

CAPSTAN_MODEL_CONFORMANCE(Llama, "plugins/model/llama/libcapstan_llama.so",
                          "[plugin/capstan.llama.Config] { " SIZES " }");

CAPSTAN_OBJECTIVE_CONFORMANCE(
    CausalLm, "plugins/objective/causal_lm/libcapstan_causal_lm.so",
    "[plugin/capstan.causal_lm.Config] {}");
CAPSTAN_OBJECTIVE_CONFORMANCE(
    MaskedDiffusion,
    "plugins/llada/masked_diffusion/libcapstan_masked_diffusion.so",
    "[plugin/capstan.masked_diffusion.Config] {}");
CAPSTAN_OBJECTIVE_CONFORMANCE(
    MaskedDiffusionSft,
    "plugins/llada/masked_diffusion/libcapstan_masked_diffusion.so",
    "[plugin/capstan.masked_diffusion.Config] { loss: SFT }");
