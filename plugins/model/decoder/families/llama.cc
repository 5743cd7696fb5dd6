// SPDX-License-Identifier: Apache-2.0
//
// Llama 1 to 3.3 (Touvron et al., 2023) and what is shaped alike: SmolLM2,
// TinyLlama, Yi ..
#include "plugins/model/decoder/families/reading.h"
#include "plugins/model/decoder/family.h"

namespace capstan::decoder::llama {

CAPSTAN_READS_MODEL_TYPE(kModelType, "llama");

void Read(ConfigKeys& keys, DecoderConfig* c) {
  c->max_position_embeddings = 2048;
  ReadSizes(keys, c);
  keys.Only("hidden_act", "silu", "silu");
  c->qkv_bias = c->output_bias = keys.Bool("attention_bias", false);
  c->mlp_bias = keys.Bool("mlp_bias", false);
  c->ropes = {ReadRope(keys, *c)};
}

constexpr Family kFamily = {kModelType, "LlamaForCausalLM", &Read};
const RegisterFamily registered(kFamily);

}  // namespace capstan::decoder::llama
