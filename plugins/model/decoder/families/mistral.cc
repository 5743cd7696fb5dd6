// SPDX-License-Identifier: Apache-2.0
//
// Mistral (Jiang et al., 2023): a Llama whose layers may all see a window.
#include <vector>

#include "plugins/model/decoder/families/reading.h"
#include "plugins/model/decoder/family.h"

namespace capstan::decoder::mistral {

CAPSTAN_READS_MODEL_TYPE(kModelType, "mistral");

void Read(ConfigKeys& keys, DecoderConfig* c) {
  c->num_key_value_heads = 8;
  c->max_position_embeddings = 131072;
  ReadSizes(keys, c);
  keys.Only("hidden_act", "silu", "silu");
  c->ropes = {ReadRope(keys, *c)};
  // As transformers: absent is 4096, null is none.
  ReadWindow(keys, 4096, std::vector<bool>(c->num_hidden_layers, true), c);
}

constexpr Family kFamily = {kModelType, "MistralForCausalLM", &Read};
const RegisterFamily registered(kFamily);

}  // namespace capstan::decoder::mistral
