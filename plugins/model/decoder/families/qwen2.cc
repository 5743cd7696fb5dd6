// SPDX-License-Identifier: Apache-2.0
//
// Qwen 2 and 2.5 (Yang et al., 2024): a Llama with biases of q, k and v.
#include "plugins/model/decoder/families/reading.h"
#include "plugins/model/decoder/family.h"

namespace capstan::decoder::qwen2 {

CAPSTAN_READS_MODEL_TYPE(kModelType, "qwen2");

void Read(ConfigKeys& keys, DecoderConfig* c) {
  c->num_key_value_heads = 32;
  c->max_position_embeddings = 32768;
  ReadSizes(keys, c);
  keys.Only("hidden_act", "silu", "silu");
  keys.Only("use_mrope", false, false);
  c->qkv_bias = true;
  c->ropes = {ReadRope(keys, *c)};
  ReadUpperWindows(keys, c);
}

constexpr Family kFamily = {kModelType, "Qwen2ForCausalLM", &Read};
const RegisterFamily registered(kFamily);

}  // namespace capstan::decoder::qwen2
